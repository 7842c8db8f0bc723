//! The shared library's name, by which programs find it: it changes with the ABI, not with every release.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libupshift_c.so.0");
}
