//! Makes the linker write a shared object: text, constants and data in segments
//! of their own, the functions of the table as its dynamic symbols.

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
