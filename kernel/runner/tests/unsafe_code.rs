//! Tests that `unsafe` appears only in the modules that `docs/kernel.md` names.
//!
//! A lint checks the SAFETY comment of each block (`clippy::undocumented_unsafe_blocks`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn kernel_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the runner is a folder of kernel/")
}

/// Returns the `*.rs` files below a folder, without build output.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of kernel/").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns whether the code, without comments, contains the word `unsafe`.
fn has_unsafe(source: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut code = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    code.any(|line| line.split(|c| !is_part(c)).any(|word| word == "unsafe"))
}

/// Returns the modules that the table under the heading names. Its columns are folder, names and
/// reason.
fn documented_modules() -> BTreeSet<String> {
    let page =
        fs::read_to_string(kernel_folder().join("../docs/kernel.md")).expect("docs/kernel.md");
    let (_, section) = page
        .split_once("## Where `unsafe` is")
        .expect("docs/kernel.md says where `unsafe` is");
    let rows = section
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"));
    let mut modules = BTreeSet::new();
    for row in rows {
        let mut cells = row.split('|').skip(1);
        let mut quoted = || cells.next().unwrap_or("").split('`').skip(1).step_by(2);
        let folder = quoted().next().expect("a folder");
        modules.extend(quoted().map(|name| format!("{folder}/{name}.rs")));
    }
    modules
}

#[test]
fn unsafe_code_is_in_the_modules_that_the_documentation_names() {
    let mut modules = BTreeSet::new();
    for file in rust_files(kernel_folder()) {
        // This test contains the word itself.
        if file.ends_with(file!().rsplit('/').next().unwrap_or_default()) {
            continue;
        }
        let source = fs::read_to_string(&file).expect("a source file");
        if has_unsafe(&source) {
            let path = file.strip_prefix(kernel_folder()).expect("below kernel/");
            modules.insert(path.to_string_lossy().into_owned());
        }
    }
    let documented = documented_modules();
    let undocumented: Vec<_> = modules.difference(&documented).collect();
    assert!(
        undocumented.is_empty(),
        "`unsafe` in {undocumented:?}: remove it, or add these modules to docs/kernel.md with the reason"
    );
    let safe: Vec<_> = documented.difference(&modules).collect();
    assert!(
        safe.is_empty(),
        "no `unsafe` in {safe:?}: remove these modules from the table of docs/kernel.md"
    );
}

#[test]
fn the_word_counts_in_code_only() {
    assert!(has_unsafe("let x = unsafe { y() };"));
    assert!(has_unsafe("#[unsafe(no_mangle)]"));
    assert!(!has_unsafe(
        "// unsafe\n#![forbid(unsafe_code)]\nlet notunsafe = 1;"
    ));
}
