//! Makes the linker write a shared object with separate segments for text, constants and data. Its
//! dynamic symbols are the functions of `os_abi::vdso_functions!`.

fn main() {
    let arguments = [
        "-shared",
        "-Bsymbolic",
        "--no-undefined",
        "-zseparate-code",
        "--hash-style=sysv",
        "--no-relax",
        "--export-dynamic-symbol=upshift_*",
    ];
    for argument in arguments {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
