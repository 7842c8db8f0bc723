//! Sets the soname of the shared library, by which programs find it. It changes with the ABI, not
//! with every release.

fn main() {
    let source = "../../linux/capi/src/version.rs";
    println!("cargo:rerun-if-changed={source}");
    let text = std::fs::read_to_string(source).expect(source);
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("pub const UPSHIFT_ABI_VERSION: u32 = "))
        .and_then(|rest| rest.strip_suffix(';'))
        .expect("UPSHIFT_ABI_VERSION");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libupshift_c.so.{version}");
}
