//! Passes the linker script of the kernel to the linker.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets the variable");
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rustc-link-arg-bins=-T{here}/kernel.ld");
    println!("cargo::rustc-link-arg-bins=--no-relax");
}
