//! `cargo xtask book`: the project's pages as one book. The suite runs the same checks of links and
//! of file names.
//!
//! The pages stay in place and link to each other and to sources. For the book the pages are copied
//! to target/xtask/book/src in the layout of the repository, without links that leave the book;
//! mdbook does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::bench::foreground;
use crate::host;
use crate::layout::LAYERS;

/// Table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Folder into which the pages are copied for mdbook.
const SOURCES: &str = "target/xtask/book/src";
/// Arguments with which cargo installs mdbook.
const INSTALL: [&str; 4] = ["install", "mdbook", "--locked", "--no-default-features"];

/// Checks the links, copies the pages and builds the book. With `install`, first installs mdbook if
/// it is missing.
pub(crate) fn command(root: &Path, install: bool) -> ExitCode {
    match build(root, install) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn build(root: &Path, install: bool) -> Result<(), String> {
    check_links(root)?;
    let count = lay_out(root).map_err(|error| format!("cannot write {SOURCES}: {error}"))?;
    println!("{count} pages in {SOURCES}, all links lead somewhere");
    if !host::has_program("mdbook") {
        let words = INSTALL.join(" ");
        if !install {
            return Err(format!(
                "mdbook is not installed: `cargo {words}`, or `cargo xtask book --install`"
            ));
        }
        let mut cargo = Command::new("cargo");
        foreground(cargo.args(INSTALL)).map_err(|_| format!("`cargo {words}` failed"))?;
    }
    let mut mdbook = Command::new("mdbook");
    foreground(mdbook.arg("build").arg(root)).map_err(|_| "mdbook failed".to_owned())?;
    println!("open target/xtask/book/html/index.html");
    Ok(())
}

/// Copies the pages of the summary, the pictures and the summary to [`SOURCES`]; returns the number
/// of pages.
fn lay_out(root: &Path) -> io::Result<usize> {
    let to = root.join(SOURCES);
    match fs::remove_dir_all(&to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    let targets = links(&summary)
        .into_iter()
        .map(|link| summary[link.target].to_owned());
    let pages: BTreeSet<PathBuf> = targets.map(|target| resolve(SUMMARY, &target)).collect();
    for page in &pages {
        let text = fs::read_to_string(root.join(page))?;
        let file = to.join(page);
        fs::create_dir_all(file.parent().unwrap_or(&to))?;
        fs::write(file, keep_inner_links(&text, page, &pages))?;
    }
    for folder in ["docs", "docs/kernel-evaluation"] {
        fs::create_dir_all(to.join(folder))?;
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "svg") {
                let name = path.file_name().unwrap_or_default();
                fs::copy(&path, to.join(folder).join(name))?;
            }
        }
    }
    // The summary is in docs/, but mdbook expects it in the book's root.
    let book_summary = rewrite(&summary, |_, target| {
        Some(resolve(SUMMARY, target).display().to_string())
    });
    fs::write(to.join("SUMMARY.md"), book_summary)?;
    Ok(pages.len())
}

/// Replaces the links to files outside the book by their text.
fn keep_inner_links(text: &str, page: &Path, pages: &BTreeSet<PathBuf>) -> String {
    rewrite(text, |is_picture, target| {
        let path = resolve(page, target.split('#').next().unwrap_or_default());
        let stays =
            is_picture || is_outside(target) || target.starts_with('#') || pages.contains(&path);
        stays.then(|| target.to_owned())
    })
}

/// Checks that every relative link leads to an existing file, and to an existing heading if it
/// names one.
///
/// # Errors
/// Lists the broken links.
pub(crate) fn check_links(root: &Path) -> Result<usize, String> {
    let mut files = Vec::new();
    pages_below(root, Path::new(""), &mut files).map_err(|error| error.to_string())?;
    let read = |path: &Path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let texts: BTreeMap<PathBuf, String> = files
        .into_iter()
        .map(|path| (path.clone(), read(&path)))
        .collect();
    let (mut count, mut broken) = (0, Vec::new());
    for (page, text) in &texts {
        for link in links(text) {
            let target = &text[link.target];
            if is_outside(target) {
                continue;
            }
            count += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                page.clone()
            } else {
                resolve(page, path)
            };
            let has_heading = || {
                heading.is_empty()
                    || texts
                        .get(&path)
                        .is_none_or(|to| headings(to).contains(heading))
            };
            if !root.join(&path).exists() || !has_heading() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    if broken.is_empty() {
        Ok(count)
    } else {
        Err(format!("links that lead nowhere: {}", broken.join("; ")))
    }
}

/// Checks that every file and folder named between backticks exists and contains the name that
/// stands beside it (`FILE` `NAME`, or `NAME` in `FILE`). A path begins at the root or, in the
/// pages at the root, in the folder of a layer.
///
/// # Errors
/// Lists the missing files and names.
pub(crate) fn check_paths(root: &Path) -> Result<usize, String> {
    let mut pages = Vec::new();
    pages_below(root, Path::new(""), &mut pages).map_err(|error| error.to_string())?;
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(root.join(&page)).map_err(|error| error.to_string())?;
        let is_at_root = page.components().count() == 1;
        for Mention { path, name } in mentions(&text) {
            let folder = path.split('/').next().unwrap_or_default();
            if !is_at_root && !root.join(folder).is_dir() {
                // The path belongs to another tree, such as the reader's.
                continue;
            }
            let mut candidates = vec![root.join(path)];
            if is_at_root {
                candidates.extend(LAYERS.map(|layer| root.join(layer).join(path)));
            }
            let Some(file) = candidates.into_iter().find(|file| file.exists()) else {
                wrong.push(format!("{}: {path}", page.display()));
                continue;
            };
            count += 1;
            if let Some(name) = name
                && file.is_file()
                && !fs::read_to_string(&file).is_ok_and(|source| source.contains(name))
            {
                wrong.push(format!("{}: no {name} in {path}", page.display()));
            }
        }
    }
    if wrong.is_empty() {
        Ok(count)
    } else {
        Err(format!(
            "pages name what does not exist: {}",
            wrong.join("; ")
        ))
    }
}

/// A path between backticks, and the name that stands beside it.
#[derive(Debug, PartialEq, Eq)]
struct Mention<'a> {
    path: &'a str,
    name: Option<&'a str>,
}

fn mentions(text: &str) -> Vec<Mention<'_>> {
    let mut mentions = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        // Parts with odd numbers are quoted; the text between two of them tells whether these two
        // belong together.
        for index in (1..parts.len().saturating_sub(1)).step_by(2) {
            let is_next = |gap: Option<&&str>, words: &str| gap.is_some_and(|gap| **gap == *words);
            let before =
                is_next(parts.get(index - 1), " in ").then(|| parts[index.saturating_sub(2)]);
            let after = is_next(parts.get(index + 1), " ")
                .then(|| parts.get(index + 2).copied())
                .flatten();
            if is_path(parts[index]) {
                let name = before.or(after).filter(|name| is_name(name));
                mentions.push(Mention {
                    path: parts[index],
                    name: name.map(|name| name.rsplit("::").next().unwrap_or(name)),
                });
            }
        }
    }
    mentions
}

/// Returns whether a text is a folder, or a file within a folder, without wildcards and
/// placeholders.
fn is_path(text: &str) -> bool {
    let is_file = [".rs", ".md", ".json", ".toml", ".hpp", ".yml"]
        .iter()
        .any(|end| text.ends_with(end));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_placeholder =
        |part: &str| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase());
    text.contains('/')
        && !text.starts_with(['/', '.'])
        && (is_file || text.ends_with('/'))
        && text.chars().all(is_plain)
        && !text.split(['/', '.']).any(is_placeholder)
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}

/// Collects the files *.md below a folder, except in build directories and hidden folders.
pub(crate) fn pages_below(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let path = folder.join(&name);
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            let is_skipped = name == "target" || (name.starts_with('.') && name != ".github");
            if !is_skipped {
                pages_below(root, &path, found)?;
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    Ok(())
}

fn is_outside(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// Resolves a link of `page` to a path from the root of the repository.
fn resolve(page: impl AsRef<Path>, target: &str) -> PathBuf {
    let mut path = page.as_ref().parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// Returns the anchors by which links refer to the headings of a page.
fn headings(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.starts_with('#')
    });
    lines
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: char| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            };
            title.chars().filter_map(kept).collect()
        })
        .collect()
}

struct Link {
    /// The whole link, from `[` (or `!` of a picture) to `)`.
    whole: Range<usize>,
    /// The text of the link.
    words: Range<usize>,
    target: Range<usize>,
}

/// Returns the inline links of a page, in order, except those in code.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    let (mut is_code, mut is_quoted) = (false, false);
    let mut open: Vec<usize> = Vec::new();
    let bytes = text.as_bytes();
    for (offset, line) in lines_of(text) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        if line.trim().is_empty() {
            (is_quoted, open) = (false, Vec::new());
        }
        for i in offset..offset + line.len() {
            match bytes[i] {
                b'`' => is_quoted = !is_quoted,
                b'[' => open.push(i),
                b']' => {
                    let Some(start) = open.pop() else { continue };
                    let end = text[i..].find(')').map(|length| i + length);
                    if let (Some(b'('), Some(end), false) = (bytes.get(i + 1), end, is_quoted) {
                        let is_picture = start > 0 && bytes[start - 1] == b'!';
                        found.push(Link {
                            whole: start - usize::from(is_picture)..end + 1,
                            words: start + 1..i,
                            target: i + 2..end,
                        });
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns the lines of a text, each with its offset.
fn lines_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut end = 0;
    text.split_inclusive('\n').map(move |line| {
        let begin = end;
        end += line.len();
        (begin, line)
    })
}

/// Rewrites the targets of links: `to` receives whether the link is a picture, and the target. A
/// link without a new target becomes its text.
fn rewrite(text: &str, to: impl Fn(bool, &str) -> Option<String>) -> String {
    let (mut out, mut copied) = (String::new(), 0);
    for link in links(text) {
        if link.whole.start < copied {
            continue;
        }
        out.push_str(&text[copied..link.whole.start]);
        let is_picture = text.as_bytes()[link.whole.start] == b'!';
        match to(is_picture, &text[link.target.clone()]) {
            Some(target) => {
                out.push_str(&text[link.whole.start..link.target.start]);
                out.push_str(&target);
                out.push(')');
            }
            None => out.push_str(&text[link.words]),
        }
        copied = link.whole.end;
    }
    out + &text[copied..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A *title*, here\n\nSee [`x.rs`](../x.rs) and [b](b.md#part), not `[c](c.md)`,\n![p](p.svg).\n\n\
                        ```\n[d](d.md)\n```\n[over\ntwo lines](e.md)\n";

    #[test]
    fn mentions_are_paths_with_a_name_in_their_file() {
        let mention = |path, name| Mention { path, name };
        let text = "`a/b.rs` `call`, `T::x` in `c/d.rs`; `e/`, `/etc/x.toml`, `f/NAME.json`, `g.rs`\n```\n`h/i.rs`\n```\n";
        assert_eq!(
            mentions(text),
            [
                mention("a/b.rs", Some("call")),
                mention("c/d.rs", Some("x")),
                mention("e/", None)
            ]
        );
    }

    #[test]
    fn links_in_code_do_not_count() {
        let targets: Vec<&str> = links(PAGE)
            .into_iter()
            .map(|link| &PAGE[link.target])
            .collect();
        assert_eq!(targets, ["../x.rs", "b.md#part", "p.svg", "e.md"]);
    }

    #[test]
    fn links_that_leave_the_book_become_text() {
        let pages = ["docs/b.md", "docs/e.md"].map(PathBuf::from).into();
        let text = keep_inner_links(PAGE, Path::new("docs/a.md"), &pages);
        assert!(text.contains("See `x.rs` and [b](b.md#part)"), "{text}");
        assert!(
            text.contains("![p](p.svg)") && text.contains("(e.md)"),
            "{text}"
        );
    }

    #[test]
    fn headings_have_the_names_that_links_use() {
        assert!(headings(PAGE).contains("a-title-here"));
        assert_eq!(resolve("docs/a.md", "../README.md"), Path::new("README.md"));
    }

    #[test]
    fn the_pages_of_this_project_have_no_broken_links() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(check_links(&root).unwrap() > 20);
    }

    #[test]
    fn the_pages_of_this_project_name_existing_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(check_paths(&root).unwrap() > 50);
    }
}
