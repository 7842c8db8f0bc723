//! From the path of a request to a name below the root.
//!
//! The kernel keeps names below the root ([`super::open`]). The paths refused here are those that
//! no honest client requests.

use percent_encoding::percent_decode_str;

/// A decoded path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Path relative to the root, without empty segments; `.` for the root itself.
    pub(super) relative: String,
    /// Set if the path ended with `/`: a folder is meant.
    pub(super) folder: bool,
    /// Set if every slash of the name is a slash of the path, so that relative links of the page
    /// resolve as its author meant them.
    pub(super) literal: bool,
}

/// The reason why a path is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// `..`, NUL, not UTF-8, or a broken escape.
    Bad,
    /// A name that begins with a dot, while such names are not served.
    Hidden,
}

/// Decodes a path once and splits it into segments.
pub(super) fn name_of(path: &str, hidden: bool) -> Result<Name, Wrong> {
    let escapes = path.split('%').skip(1);
    for escape in escapes {
        let digits = escape.as_bytes().get(..2).ok_or(Wrong::Bad)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Wrong::Bad);
        }
    }
    let decoded = percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| Wrong::Bad)?;
    if decoded.contains('\0') {
        return Err(Wrong::Bad);
    }
    let mut relative = String::with_capacity(decoded.len());
    let mut secret = false;
    for segment in decoded
        .split('/')
        .filter(|segment| !segment.is_empty() && *segment != ".")
    {
        if segment == ".." {
            return Err(Wrong::Bad);
        }
        // RFC 8615: well-known names are public.
        secret |= segment.starts_with('.') && segment != ".well-known";
        if !relative.is_empty() {
            relative.push('/');
        }
        relative.push_str(segment);
    }
    if secret && !hidden {
        return Err(Wrong::Hidden);
    }
    let folder = relative.is_empty() || decoded.ends_with('/') || decoded.ends_with("/.");
    if relative.is_empty() {
        relative.push('.');
    }
    let bytes = path.as_bytes();
    let has_escaped = bytes
        .windows(3)
        .any(|escape| escape.eq_ignore_ascii_case(b"%2f"));
    Ok(Name {
        relative,
        folder,
        literal: !has_escaped && folder == path.ends_with('/'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn honest_paths_are_understood() {
        for (path, relative, folder) in [
            ("/", ".", true),
            ("/a/b.txt", "a/b.txt", false),
            ("/a//b/", "a/b", true),
            ("/a/./b", "a/b", false),
            ("/a%20b%C3%A4", "a bä", false),
            ("/%2e/a", "a", false),
            ("/.well-known/x", ".well-known/x", false),
            ("/a..b/...c", "", false),
        ] {
            let name = name_of(path, false);
            if relative.is_empty() {
                assert_eq!(name, Err(Wrong::Hidden), "{path}");
                continue;
            }
            let expected = Name {
                relative: relative.into(),
                folder,
                literal: true,
            };
            assert_eq!(name, Ok(expected), "{path}");
        }
    }

    #[test]
    fn slashes_that_are_escaped_or_left_out_are_told() {
        for path in ["/a%2fb", "/a%2F", "/a%2F/", "/a/.", "/a%2F."] {
            assert!(!name_of(path, false).unwrap().literal, "{path}");
        }
        for path in ["/", "/a%20b", "/a//b/", "/a/", "/%252f"] {
            assert!(name_of(path, false).unwrap().literal, "{path}");
        }
    }

    #[test]
    fn paths_that_climb_are_refused() {
        for path in [
            "/..",
            "/../etc/passwd",
            "/a/../../b",
            "/%2e%2e/b",
            "/..%2fetc",
            "/a/%2E%2E/",
            "/a%00b",
            "/a%",
            "/a%2",
            "/a%zz",
            "/%ff",
            "/%c0%ae%c0%ae/",
        ] {
            assert_eq!(name_of(path, true), Err(Wrong::Bad), "{path}");
        }
        // Decoded once: the result is an odd but harmless name.
        assert_eq!(name_of("/%252e%252e/", true).unwrap().relative, "%2e%2e");
    }

    #[test]
    fn hidden_names_are_served_only_if_wanted() {
        assert_eq!(name_of("/.git/config", false), Err(Wrong::Hidden));
        assert_eq!(name_of("/a/.env", false), Err(Wrong::Hidden));
        assert_eq!(name_of("/a/.env", true).unwrap().relative, "a/.env");
    }
}
