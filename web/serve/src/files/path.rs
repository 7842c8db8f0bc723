//! Converts the path of a request to a name below the root.
//!
//! The kernel keeps lookups below the root ([`super::open`]). This module refuses paths that
//! regular clients do not request.

use percent_encoding::percent_decode_str;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Path relative to the root, without empty segments; `.` for the root itself.
    pub(super) relative: String,
    /// Set if the path ended with `/`, which means a folder.
    pub(super) is_folder: bool,
    /// Set if every slash of the name is a literal slash of the path, so that relative links of the
    /// page resolve as intended.
    pub(super) is_literal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathError {
    /// The path contains `..` or NUL, is not UTF-8, or has a broken escape.
    Invalid,
    Hidden,
}

pub(super) fn parse(path: &str, hidden: bool) -> Result<Name, PathError> {
    let escapes = path.split('%').skip(1);
    for escape in escapes {
        let digits = escape.as_bytes().get(..2).ok_or(PathError::Invalid)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(PathError::Invalid);
        }
    }
    let decoded = percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| PathError::Invalid)?;
    if decoded.contains('\0') {
        return Err(PathError::Invalid);
    }
    let mut relative = String::with_capacity(decoded.len());
    let mut has_dot_name = false;
    for segment in decoded
        .split('/')
        .filter(|segment| !segment.is_empty() && *segment != ".")
    {
        if segment == ".." {
            return Err(PathError::Invalid);
        }
        // RFC 8615: well-known names are public.
        has_dot_name |= segment.starts_with('.') && segment != ".well-known";
        if !relative.is_empty() {
            relative.push('/');
        }
        relative.push_str(segment);
    }
    if has_dot_name && !hidden {
        return Err(PathError::Hidden);
    }
    let is_folder = relative.is_empty() || decoded.ends_with('/') || decoded.ends_with("/.");
    if relative.is_empty() {
        relative.push('.');
    }
    let bytes = path.as_bytes();
    let has_escaped_slash = bytes
        .windows(3)
        .any(|escape| escape.eq_ignore_ascii_case(b"%2f"));
    Ok(Name {
        relative,
        is_folder,
        is_literal: !has_escaped_slash && is_folder == path.ends_with('/'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_unless_hidden() {
        for (path, relative, is_folder) in [
            ("/", ".", true),
            ("/a/b.txt", "a/b.txt", false),
            ("/a//b/", "a/b", true),
            ("/a/./b", "a/b", false),
            ("/a%20b%C3%A4", "a bä", false),
            ("/%2e/a", "a", false),
            ("/.well-known/x", ".well-known/x", false),
            // Refused as hidden, since `...c` begins with a dot.
            ("/a..b/...c", "", false),
        ] {
            let name = parse(path, false);
            if relative.is_empty() {
                assert_eq!(name, Err(PathError::Hidden), "{path}");
                continue;
            }
            let expected = Name {
                relative: relative.into(),
                is_folder,
                is_literal: true,
            };
            assert_eq!(name, Ok(expected), "{path}");
        }
    }

    #[test]
    fn escaped_and_missing_slashes_are_noted() {
        for path in ["/a%2fb", "/a%2F", "/a%2F/", "/a/.", "/a%2F."] {
            assert!(!parse(path, false).unwrap().is_literal, "{path}");
        }
        for path in ["/", "/a%20b", "/a//b/", "/a/", "/%252f"] {
            assert!(parse(path, false).unwrap().is_literal, "{path}");
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
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
            assert_eq!(parse(path, true), Err(PathError::Invalid), "{path}");
        }
        // The path is decoded once, so the result is an odd but harmless name.
        assert_eq!(parse("/%252e%252e/", true).unwrap().relative, "%2e%2e");
    }

    #[test]
    fn hidden_names_are_served_only_if_wanted() {
        assert_eq!(parse("/.git/config", false), Err(PathError::Hidden));
        assert_eq!(parse("/a/.env", false), Err(PathError::Hidden));
        assert_eq!(parse("/a/.env", true).unwrap().relative, "a/.env");
    }
}
