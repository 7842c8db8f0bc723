//! Checks that no comment is wider than [`COLUMNS`], since rustfmt does not wrap comments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Largest number of columns that a line with a comment may have, including the indentation.
const COLUMNS: usize = 100;

/// Extensions of files with comments in C's form.
const EXTENSIONS: [&str; 6] = ["rs", "h", "hpp", "c", "cpp", "S"];

/// Largest number of lines that an error names.
const MAX_NAMED: usize = 10;

/// Checks each source file of the tree except those in build folders.
///
/// # Errors
/// The places of the first wide comments and their number, or the file that cannot be read.
pub(super) fn check(root: &Path) -> Result<(), String> {
    let mut places = Vec::new();
    for file in sources(root).map_err(|error| format!("{}: {error}", root.display()))? {
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        places.extend(wide_lines(&text).map(|line| format!("{name}:{line}")));
    }
    if places.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} lines of comments are wider than {COLUMNS} columns: {}",
        places.len(),
        places[..places.len().min(MAX_NAMED)].join(", ")
    ))
}

/// Returns the numbers of the lines with a wide comment that could be wrapped.
fn wide_lines(text: &str) -> impl Iterator<Item = usize> {
    let lines = text.lines().enumerate();
    lines.filter_map(|(index, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        let words = comment.trim_start_matches(['/', '!']).trim();
        let is_wide = line.chars().count() > COLUMNS && words.contains(' ');
        is_wide.then_some(index + 1)
    })
}

fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if kind.is_dir() {
                if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                    folders.push(path);
                }
            } else if kind.is_file()
                && let Some(extension) = path.extension()
                && EXTENSIONS.iter().any(|known| extension == *known)
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_wider_than_the_limit_are_named_by_line() {
        let wide_comment = format!("    /// {}", "word ".repeat(20));
        let wide_code = format!("let text = \"{}\";", "word ".repeat(20));
        let address = format!("// https://example.invalid/{}", "x".repeat(100));
        let text = format!("// short\n{wide_comment}\n{wide_code}\n{address}\n");
        assert_eq!(wide_lines(&text).collect::<Vec<_>>(), [2]);
    }
}
