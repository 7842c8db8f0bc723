//! Passes the linker script of user programs to the linker.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets the variable");
    println!("cargo::rerun-if-changed=user.ld");
    println!("cargo::rustc-link-arg-bins=-T{here}/user.ld");
    println!("cargo::rustc-link-arg-bins=--no-relax");
}
