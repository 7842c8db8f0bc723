//! Creates the page that lists a folder.

use std::fmt::Write;
use std::fs::File;
use std::io;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{Dir, FileType};
use upshift_trace::escape;

use super::open::Root;

/// Largest number of listed names; the page says if the folder has more.
const MAX_NAMES: usize = 10_000;

const NAME_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

struct Entry {
    name: String,
    is_folder: bool,
    size: u64,
}

/// Returns the page of the folder with the path `relative` below the root. Blocks, because it reads
/// the folder and queries every size. Links that lead out of the root are not listed, because they
/// are not served.
pub(super) fn page(root: &Root, folder: &File, relative: &str, hidden: bool) -> io::Result<String> {
    let mut entries = Vec::new();
    let mut is_truncated = false;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name == "." || name == ".." || (name.starts_with('.') && !hidden) {
            continue;
        }
        if entries.len() == MAX_NAMES {
            is_truncated = true;
            break;
        }
        let Ok((kind, size)) = root.stat(&format!("{relative}/{name}")) else {
            continue;
        };
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            entries.push(Entry {
                name: name.to_owned(),
                is_folder: kind.is_dir(),
                size,
            });
        }
    }
    entries.sort_by(|a, b| {
        b.is_folder
            .cmp(&a.is_folder)
            .then_with(|| a.name.cmp(&b.name))
    });
    let title = if relative == "." {
        "/".to_owned()
    } else {
        format!("/{relative}/")
    };
    Ok(render(&title, &entries, is_truncated))
}

fn render(title: &str, entries: &[Entry], is_truncated: bool) -> String {
    let title = escape(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n\
         <style>body{{font:16px/1.5 system-ui,sans-serif;margin:2em auto;max-width:50em;padding:0 1em;\
         color-scheme:light dark}}table{{border-collapse:collapse;width:100%}}td{{padding:.1em .5em}}\
         td+td{{text-align:right;font-variant-numeric:tabular-nums}}a{{text-decoration:none}}\
         tr:hover{{background:#8882}}</style></head>\n<body><h1>{title}</h1>\n<table>\n"
    );
    if title != "/" {
        page.push_str("<tr><td><a href=\"../\">..</a></td><td></td></tr>\n");
    }
    for entry in entries {
        let slash = if entry.is_folder { "/" } else { "" };
        let link = utf8_percent_encode(&entry.name, NAME_ESCAPES);
        let size = if entry.is_folder {
            String::new()
        } else {
            format_size(entry.size)
        };
        // Writing to a string cannot fail. The link begins with `./`, because a name with a colon
        // would be read as a scheme.
        let _ = writeln!(
            page,
            "<tr><td><a href=\"./{link}{slash}\">{}{slash}</a></td><td>{size}</td></tr>",
            escape(&entry.name)
        );
    }
    page.push_str("</table>\n");
    if is_truncated {
        let _ = writeln!(page, "<p>Only {MAX_NAMES} names are listed.</p>");
    }
    page.push_str("</body></html>\n");
    page
}

fn format_size(size: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = size as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{size} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_text_and_as_links() {
        let entry = |name: &str| Entry {
            name: name.into(),
            is_folder: false,
            size: 2048,
        };
        let page = render(
            "/a<b>/",
            &[entry("<script>"), entry("javascript:x"), entry("a&b?c#d")],
            false,
        );
        assert!(
            !page.contains("<script>") && page.contains("&lt;script&gt;"),
            "{page}"
        );
        assert!(page.contains("href=\"./javascript%3Ax\""), "{page}");
        assert!(page.contains("href=\"./a%26b%3Fc%23d\""), "{page}");
        assert!(page.contains("2.0 KiB"), "{page}");
    }
}
