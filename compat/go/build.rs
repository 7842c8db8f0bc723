//! Builds `work.go` as a C library.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets the variable"));
    let mut go = Command::new("go");
    go.args(["build", "-buildmode=c-archive", "-o"])
        .arg(folder.join("libwork.a"))
        .arg("work.go");
    let status = go.status().expect("cannot run `go`: is Go installed?");
    assert!(status.success(), "{go:?}: {status}");
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=static=work");
    println!("cargo:rerun-if-changed=work.go");
}
