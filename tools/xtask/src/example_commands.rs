//! Checks the commands on the documentation pages: every example that a page runs must exist in the
//! package that the page names.

use std::fs;
use std::path::Path;

use crate::book::pages_below;
use crate::layout;

/// Checks that every `cargo run … --example NAME` on a page names the package that contains the
/// example, because without a package cargo builds only the command. Returns the number of such
/// commands.
///
/// # Errors
/// Lists the commands that do not run as printed.
pub(crate) fn check(root: &Path) -> Result<usize, String> {
    let mut pages = Vec::new();
    pages_below(root, Path::new(""), &mut pages).map_err(|error| error.to_string())?;
    let (mut count, mut failures) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(root.join(&page)).map_err(|error| error.to_string())?;
        for command in text.split("cargo run").skip(1) {
            let words: Vec<&str> = command
                .split(['\n', '`', ';'])
                .next()
                .into_iter()
                .flat_map(str::split_whitespace)
                .collect();
            let argument_of = |option| {
                let index = words.iter().position(|&word| word == option)?;
                words.get(index + 1).copied()
            };
            let Some(example) = argument_of("--example") else {
                continue;
            };
            count += 1;
            // A name in capitals is a placeholder; a manifest path names another workspace.
            if example.chars().all(char::is_uppercase) || argument_of("--manifest-path").is_some() {
                continue;
            }
            if !argument_of("-p").is_some_and(|package| has_example(root, package, example)) {
                failures.push(format!("{}: --example {example}", page.display()));
            }
        }
    }
    if failures.is_empty() {
        Ok(count)
    } else {
        Err(format!("cannot be run as printed: {}", failures.join("; ")))
    }
}

fn has_example(root: &Path, package: &str, example: &str) -> bool {
    let name = format!("name = \"{package}\"");
    layout::crates(root).is_ok_and(|folders| {
        folders.iter().any(|folder| {
            let is_named = fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|manifest| manifest.lines().any(|line| line == name));
            let examples = folder.join("examples");
            is_named
                && (examples.join(format!("{example}.rs")).exists()
                    || examples.join(example).join("main.rs").exists())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_this_project_name_existing_examples() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(check(&root).unwrap() >= 5);
        assert!(has_example(&root, "upshift", "timeline"));
        assert!(!has_example(&root, "upshift-cli", "timeline"));
    }
}
