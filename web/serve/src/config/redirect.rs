//! Redirects for URLs that have moved.

use serde::Deserialize;

/// A prefix of URLs and the text that replaces it.
///
/// The redirect is permanent. Clients that follow the redirect keep the method (status 308) and may
/// remember the new URL.
///
/// ```
/// use upshift_serve::Redirect;
///
/// let secure = Redirect { from: "http://".into(), to: "https://".into() };
/// let to = secure.location("http", "example.com", "/page?x=1");
/// assert_eq!(to.as_deref(), Some("https://example.com/page?x=1"));
/// let moved = Redirect { from: "/old".into(), to: "/new".into() };
/// assert_eq!(moved.location("https", "example.com", "/old/a").as_deref(), Some("/new/a"));
/// assert_eq!(moved.location("https", "example.com", "/older"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// Path on any host, or `http://` or `https://` with or without a host and a path. The prefix
    /// must end at the end of a segment of the URL.
    pub from: String,
    /// Path or URL that replaces the prefix.
    pub to: String,
}

impl Redirect {
    /// Returns the URL to which a request is redirected, or `None` if its URL does not begin with
    /// [`from`](Redirect::from). `host` has no port; `path` includes the query.
    #[must_use]
    pub fn location(&self, scheme: &str, host: &str, path: &str) -> Option<String> {
        let rest = if self.from.starts_with('/') {
            strip_prefix(path, &self.from)?.to_owned()
        } else {
            strip_prefix(&format!("{scheme}://{host}{path}"), &self.from)?.to_owned()
        };
        // A browser reads a backslash as a slash.
        let rest = rest.replace('\\', "%5C");
        let location = format!("{}{rest}", self.to.trim_end_matches('/'));
        if is_url(&location) {
            return Some(location);
        }
        // Only one slash may be in front, because two would name another host.
        Some(format!("/{}", location.trim_start_matches('/')))
    }

    /// Checks that the redirect leads clients to the intended URL.
    ///
    /// # Errors
    /// The reason why clients would not reach the URL.
    pub(super) fn check(&self) -> Result<(), String> {
        let Redirect { from, to } = self;
        for (name, text) in [("from", from), ("to", to)] {
            let is_path = text.starts_with('/') && !text.starts_with("//");
            if !is_path && !is_url(text) {
                return Err(format!(
                    "redirect: {name} = \"{text}\": write a path (/old) or a URL (https://example.com/)"
                ));
            }
            if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "redirect: {name} = \"{text}\": escape spaces (%20) and characters that are not ASCII"
                ));
            }
        }
        if is_url(from) && to.starts_with('/') {
            return Err(format!(
                "redirect: from = \"{from}\" is a URL, so `to` must be one; use to = \"https://…\""
            ));
        }
        if strip_prefix(to, from).is_some() {
            return Err(format!(
                "redirect: \"{to}\" is below \"{from}\": a client would be redirected for ever"
            ));
        }
        Ok(())
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Returns the part of a URL after a prefix. The prefix must end at the end of a segment: the part
/// is empty, or begins with a slash or a question mark.
fn strip_prefix<'a>(url: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = url.strip_prefix(prefix.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(from: &str, to: &str) -> Redirect {
        Redirect {
            from: from.into(),
            to: to.into(),
        }
    }

    #[test]
    fn a_prefix_of_whole_segments_is_replaced() {
        for (from, to, path, expected) in [
            ("http://", "https://", "/a?b", Some("https://a.test/a?b")),
            ("https://", "http://", "/a", None),
            (
                "http://a.test",
                "https://b.test/",
                "/",
                Some("https://b.test/"),
            ),
            ("http://a.test/x/", "/", "/y", None),
            ("http://b.test", "https://a.test", "/", None),
            ("/", "https://b.test/c", "/a", Some("https://b.test/c/a")),
            ("/old/", "/new", "/old/a", Some("/new/a")),
            ("/old", "/new/", "/old?x", Some("/new?x")),
            ("/old", "/", "/old", Some("/")),
            ("/old", "/new", "/older", None),
        ] {
            let location = redirect(from, to).location("http", "a.test", path);
            assert_eq!(location.as_deref(), expected, "{from} {to} {path}");
        }
    }

    #[test]
    fn a_path_does_not_become_another_host() {
        let root = redirect("/old", "/");
        for (path, expected) in [
            ("/old//evil.test", "/evil.test"),
            ("/old/\\evil.test", "/%5Cevil.test"),
            ("/old/%2Fevil.test", "/%2Fevil.test"),
        ] {
            let location = root.location("http", "a.test", path);
            assert_eq!(location.as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn unusable_redirects_are_refused() {
        for (from, to, expected) in [
            ("old", "/new", "write a path"),
            ("/old", "//b.test", "write a path"),
            ("/a b", "/c", "escape"),
            ("/a", "/a/b", "for ever"),
            ("/", "/new", "for ever"),
            ("http://", "/new", "`to` must be one"),
        ] {
            let error = redirect(from, to).check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        for (from, to) in [("http://", "https://"), ("/", "https://b.test")] {
            assert_eq!(redirect(from, to).check(), Ok(()));
        }
    }
}
