//! Tests that `docs/kernel-program.md` shows the program of the tree, and commands that exist.

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(root().join("../../docs/kernel-program.md")).expect("the page is readable")
}

#[test]
fn the_page_shows_the_program_of_the_tree() {
    let page = page();
    let (_, rest) = page
        .split_once("```rust\n")
        .expect("the page shows a program");
    let (shown, _) = rest.split_once("```\n").expect("the program has an end");
    let program = fs::read_to_string(root().join("../user/src/bin/hello.rs"))
        .expect("the program is readable");
    assert_eq!(
        shown, program,
        "copy kernel/user/src/bin/hello.rs to the page"
    );
}

#[test]
fn the_page_shows_commands_of_the_shell() {
    let commands = fs::read_to_string(root().join("../user/src/bin/shell/commands.rs"));
    let commands = commands.expect("the sources of the shell are readable");
    let page = page();
    let typed = page.lines().filter_map(|line| line.strip_prefix("$ "));
    let mut count = 0;
    for line in typed {
        let word = line.split(' ').next().unwrap_or_default();
        let is_program = ["hello", "mine", "sockets", "bin/hello", "exit"].contains(&word);
        let is_command = commands.contains(&format!("\"{word}\" =>"));
        assert!(is_program || is_command, "`{line}`: no such command");
        count += 1;
    }
    assert!(count > 10, "the page shows only {count} commands");
}
