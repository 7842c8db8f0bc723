//! Compares the header that is checked in with the sources.
//! `UPSHIFT_BLESS=1 cargo test -p upshift-c --test header` writes it again.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = here.join("../../cpp/include/upshift.h");
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("the settings");
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_crate(here)
        .with_config(config)
        .generate()
        .expect("a header")
        .write(&mut made);
    let made = String::from_utf8(made).expect("text");
    if std::env::var_os("UPSHIFT_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, made).expect("to write the header");
        return;
    }
    let checked_in = std::fs::read_to_string(&path).expect("the header");
    assert!(
        checked_in == made,
        "cpp/include/upshift.h is stale: UPSHIFT_BLESS=1 cargo test -p upshift-c --test header"
    );
}
