//! Compares the C header in the repository with the sources.
//! `UPSHIFT_BLESS=1 cargo test -p upshift-c --test header` regenerates the header.

use std::path::Path;

#[test]
fn the_header_matches_the_sources() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_dir.join("../../cpp/include/upshift.h");
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml"))
        .expect("cbindgen.toml is invalid");
    let mut generated = Vec::new();
    cbindgen::Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .expect("the header cannot be generated")
        .write(&mut generated);
    let generated = String::from_utf8(generated).expect("the header is not UTF-8");
    if std::env::var_os("UPSHIFT_BLESS").is_some() {
        let folder = path.parent().expect("the path has a folder");
        std::fs::create_dir_all(folder).expect("cannot create the folder of the header");
        std::fs::write(&path, generated).expect("cannot write the header");
        return;
    }
    let checked_in = std::fs::read_to_string(&path).expect("cannot read the header");
    assert!(
        checked_in == generated,
        "cpp/include/upshift.h is stale: UPSHIFT_BLESS=1 cargo test -p upshift-c --test header"
    );
}
