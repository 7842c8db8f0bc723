//! Builds a page as one HTML file, without scripts and external files, for light and dark themes
//! and any width.
//!
//! Every text is escaped; only [`Page::figure`] takes markup.

use std::fmt::Write as _;

use crate::{Plot, Table, escape};

const STYLE: &str = include_str!("page.css");

/// A page under construction, from top to bottom.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// Creates a page with its title as the first heading.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Page {
        let mut page = Page {
            title: title.into(),
            body: String::new(),
        };
        page.heading(1, &page.title.clone());
        page
    }

    fn element(&mut self, tag: &str, class: &str, text: &str) {
        let _ = writeln!(self.body, "<{tag}{class}>{}</{tag}>", escape(text));
    }

    /// Adds a heading of level 1 to 6.
    pub fn heading(&mut self, level: u8, text: &str) {
        self.element(&format!("h{level}"), "", text);
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.element("p", "", text);
    }

    /// Adds a paragraph in bold.
    pub fn verdict(&mut self, text: &str) {
        self.element("p", " class=\"verdict\"", text);
    }

    /// Adds commands or other text that keeps its lines.
    pub fn code(&mut self, text: &str) {
        self.element("pre", "", text);
    }

    /// Adds facts with their names, a line for each.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        self.body.push_str("<dl>\n");
        for (name, value) in facts {
            self.element("dt", "", name);
            self.element("dd", "", value);
        }
        self.body.push_str("</dl>\n");
    }

    /// Adds a list.
    pub fn list(&mut self, items: impl IntoIterator<Item = impl AsRef<str>>) {
        self.body.push_str("<ul>\n");
        for item in items {
            self.element("li", "", item.as_ref());
        }
        self.body.push_str("</ul>\n");
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        self.body.push_str(&table.html());
    }

    /// Adds plots, side by side where there is room: three in a row if that leaves no gap, else
    /// two.
    pub fn plots(&mut self, plots: &[Plot]) {
        let few = if plots.len().is_multiple_of(3) {
            ""
        } else {
            " few"
        };
        let _ = writeln!(self.body, "<div class=\"plots{few}\">");
        for plot in plots {
            let _ = writeln!(self.body, "<figure>{}</figure>", plot.svg());
        }
        self.body.push_str("</div>\n");
    }

    /// Adds an `<svg>` element over the whole width.
    pub fn figure(&mut self, svg: &str) {
        let _ = writeln!(self.body, "<figure class=\"wide\">{svg}</figure>");
    }

    /// Returns the file.
    #[must_use]
    pub fn html(&self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
            escape(&self.title),
            self.body
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Kind, SeriesStyle, plot::COLOURS};

    /// Asserts that tags balance, attributes are quoted, and numbers are finite.
    pub(crate) fn assert_well_formed(text: &str) {
        for bad in ["NaN", "inf ", "\"inf", "-inf"] {
            assert!(!text.contains(bad), "`{bad}` in {text}");
        }
        let mut open: Vec<&str> = Vec::new();
        for part in text.split('<').skip(1) {
            let (tag, _) = part.split_once('>').expect("a tag ends");
            assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}>");
            let name = tag.trim_start_matches('/').split([' ', '/']).next();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), name, "</{tag}> closes something else");
            } else if !tag.starts_with('!') && !tag.ends_with('/') {
                open.extend(name);
            }
        }
        assert!(open.is_empty(), "never closed: {open:?}");
    }

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        let mut table = Table::new("Numbers <raw>", &["<model", "req/s"]);
        table.row(["a & b".into(), "1".into()]);
        let mut plot = Plot::new("t", ("x", Kind::Log2), ("y", Kind::Linear));
        plot.add("s", SeriesStyle::Line, COLOURS[0], [(1.0, 1.0)]);
        let mut page = Page::new("A <report>");
        page.heading(2, "One & two");
        page.paragraph("What & why");
        page.verdict("All is well");
        page.facts(&[("Machine", "<2 CPUs>".into())]);
        page.list(["threads win at 1"]);
        page.plots(&[plot]);
        page.figure("<svg></svg>");
        page.table(&table);
        page.code("echo '<ok>'");
        let text = page.html();
        assert_well_formed(&text);
        let text = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!text.contains(outside), "the page refers to {outside}");
        }
        assert!(text.contains("prefers-color-scheme: dark"));
        assert!(text.contains("echo &#39;&lt;ok&gt;&#39;"));
        assert!(text.contains("<li>threads win at 1</li>"));
    }
}
