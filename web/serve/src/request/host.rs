//! Checks request targets, and finds the host of a request and the site that serves it.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Uri, Version};

/// Maximum length of a DNS name, in bytes.
const MAX_NAME_BYTES: usize = 253;

/// Returns whether a target is valid for a method. The target must be a path, or a URI with a path.
/// Only CONNECT names a host without a path, and only OPTIONS allows `*` (RFC 9112, section 3.2).
pub(crate) fn is_valid_target(method: &Method, uri: &Uri) -> bool {
    let is_authority_only = uri.authority().is_some() && uri.scheme().is_none();
    if *method == Method::CONNECT {
        return is_authority_only;
    }
    let has_path = uri.path().starts_with('/') && !is_authority_only;
    has_path || *method == Method::OPTIONS && uri.path() == "*"
}

/// Returns the host of a request without its port, as the client wrote it. The host is empty if the
/// request names no host, which HTTP/1.0 and HTTP/2 allow. Returns `None` if the request must be
/// refused because the host is invalid, not unique, or missing in HTTP/1.1 (RFC 9112, section 3.2;
/// RFC 9113, section 8.3.1).
pub(crate) fn of_request<'a>(
    version: Version,
    uri: &'a Uri,
    headers: &'a HeaderMap,
) -> Option<&'a str> {
    let mut fields = headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return None;
    }
    let field = match field {
        None if version == Version::HTTP_11 => return None,
        None => None,
        Some(value) => Some(strip_port(std::str::from_utf8(value.as_bytes()).ok()?)?),
    };
    let Some(authority) = uri.authority() else {
        return Some(field.unwrap_or_default());
    };
    let host = strip_port(authority.as_str())?;
    // In HTTP/1 the target of the request takes precedence over the Host field.
    let differ = |field: &str| !field.eq_ignore_ascii_case(host);
    if version >= Version::HTTP_2 && field.is_some_and(differ) {
        return None;
    }
    Some(host)
}

/// Returns the host of a request that [`of_request`] has accepted. The arguments are copies of
/// fields of that request. An invalid target yields an empty host.
pub(crate) fn of_saved<'a>(method: &Method, uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let field = || headers.get(HOST).map(HeaderValue::to_str)?.ok();
    let authority = uri.authority().filter(|_| is_valid_target(method, uri));
    let target = authority.map(|authority| authority.as_str());
    target
        .or_else(field)
        .and_then(strip_port)
        .unwrap_or_default()
}

/// Returns the host of `HOST[:PORT]`, or `None` for any other text.
fn strip_port(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let end = if bytes.first() == Some(&b'[') {
        let end = bytes.iter().position(|byte| *byte == b']')?;
        text[1..end].parse::<Ipv6Addr>().ok()?;
        end + 1
    } else {
        let end = bytes
            .iter()
            .position(|byte| !IS_HOST_BYTE[usize::from(*byte)]);
        end.unwrap_or(bytes.len())
    };
    match &bytes[end..] {
        [] => Some(text),
        [b':', port @ ..] if end > 0 && port.iter().all(u8::is_ascii_digit) => Some(&text[..end]),
        _ => None,
    }
}

/// Bytes that may be unescaped in a host name (RFC 3986, section 3.2.2).
const IS_HOST_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let punctuation = b"-._~!$&'()*+,;=";
    let mut index = 0;
    while index < punctuation.len() {
        table[punctuation[index] as usize] = true;
        index += 1;
    }
    table
};

/// The sites by host. The case of names and a trailing dot are ignored.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    exact: HashMap<String, usize>,
    /// Sites by the name after `*.`.
    wildcard: HashMap<String, usize>,
}

impl Hosts {
    /// Adds a name, `*.NAME` (all its subdomains) or an address.
    ///
    /// # Errors
    /// Returns a message that says what is wrong with the name, or which site already has it.
    pub(crate) fn add(&mut self, host: &str, site: usize) -> Result<(), String> {
        let lower = host.to_ascii_lowercase();
        let lower = lower.strip_suffix('.').unwrap_or(&lower);
        let (table, name) = match lower.strip_prefix("*.") {
            Some(name) => (&mut self.wildcard, name),
            None => (&mut self.exact, lower),
        };
        let reason = if host == "*" {
            "use the settings outside of [[site]], which are for all other hosts"
        } else if !host.is_ascii() {
            "write it in its ASCII form, `xn--…`"
        } else if host.contains("://") || host.contains('/') {
            "write only the name, without scheme and path"
        } else if name.contains('*') {
            "`*` may stand in front only: `*.example.com`"
        } else if name.is_empty() || name.len() > MAX_NAME_BYTES || strip_port(name).is_none() {
            "use a name, `*.name` or an address (IPv6 in brackets)"
        } else if strip_port(name) != Some(name) {
            "write it without the port"
        } else {
            return match table.insert(name.to_owned(), site) {
                Some(other) if other != site => Err(format!(
                    "host `{host}`: both site {other} and site {site} list it"
                )),
                Some(_) => Err(format!("host `{host}`: site {site} lists it twice")),
                None => Ok(()),
            };
        };
        Err(format!("host `{host}`: {reason}"))
    }

    /// Returns the site of a host, or 0, the default. The exact name takes precedence over `*.`,
    /// and a longer `*.` over a shorter one.
    pub(crate) fn find(&self, host: &str) -> usize {
        let host = host.strip_suffix('.').unwrap_or(host);
        let mut buffer = [0; MAX_NAME_BYTES];
        let Some(lower) = buffer.get_mut(..host.len()) else {
            return 0;
        };
        lower.copy_from_slice(host.as_bytes());
        lower.make_ascii_lowercase();
        let Ok(host) = std::str::from_utf8(lower) else {
            return 0;
        };
        if let Some(site) = self.exact.get(host) {
            return *site;
        }
        if self.wildcard.is_empty() {
            return 0;
        }
        let suffixes = host.match_indices('.').map(|(index, _)| &host[index + 1..]);
        suffixes
            .filter_map(|suffix| self.wildcard.get(suffix))
            .copied()
            .next()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_targets_are_accepted() {
        for (method, target, is_valid) in [
            (Method::GET, "/", true),
            (Method::GET, "/a?b", true),
            (Method::GET, "http://a.test", true),
            (Method::GET, "http://a.test?b", true),
            (Method::GET, "a.test", false),
            (Method::GET, "a.test:80", false),
            (Method::GET, "*", false),
            (Method::OPTIONS, "*", true),
            (Method::OPTIONS, "/a", true),
            (Method::OPTIONS, "a.test", false),
            (Method::CONNECT, "a.test:80", true),
            (Method::CONNECT, "/", false),
            (Method::CONNECT, "http://a.test/", false),
        ] {
            let uri = target.parse().unwrap();
            assert_eq!(
                is_valid_target(&method, &uri),
                is_valid,
                "{method} {target}"
            );
        }
    }

    #[test]
    fn only_valid_hosts_are_accepted() {
        for (text, host) in [
            ("", Some("")),
            ("a.test", Some("a.test")),
            ("A_b-c.test.:", Some("A_b-c.test.")),
            ("a.test:8080", Some("a.test")),
            ("127.0.0.1:80", Some("127.0.0.1")),
            ("[::1]", Some("[::1]")),
            ("[::1]:80", Some("[::1]")),
            ("[::1", None),
            ("[::g]", None),
            ("[::1]x", None),
            ("::1", None),
            (":80", None),
            ("a.test:x", None),
            ("a.test:80:80", None),
            ("a.test/x", None),
            ("a test", None),
            ("a.test,b.test", Some("a.test,b.test")),
            ("user@a.test", None),
            ("a%2etest", None),
            ("a\\b", None),
        ] {
            assert_eq!(strip_port(text), host, "{text}");
        }
    }

    #[test]
    fn the_most_specific_name_is_found() {
        let mut hosts = Hosts::default();
        for (host, site) in [
            ("Example.com", 1),
            ("*.example.com", 2),
            ("*.b.example.com", 3),
            ("www.b.example.com.", 4),
            ("[::1]", 5),
        ] {
            hosts.add(host, site).unwrap();
        }
        let long = format!("{}.example.com", "a".repeat(300));
        for (host, site) in [
            ("example.com", 1),
            ("EXAMPLE.com.", 1),
            ("a.example.com", 2),
            ("x.a.example.com", 2),
            ("b.example.com", 2),
            ("a.b.EXAMPLE.com", 3),
            ("www.b.example.com", 4),
            ("[::1]", 5),
            ("notexample.com", 0),
            ("com", 0),
            (".", 0),
            ("", 0),
            (&long, 0),
        ] {
            assert_eq!(hosts.find(host), site, "{host}");
        }
    }

    #[test]
    fn invalid_and_duplicate_names_are_reported() {
        let mut hosts = Hosts::default();
        hosts.add("a.test", 1).unwrap();
        for (host, expected) in [
            ("A.test.", "both site 1 and site 2 list it"),
            ("*", "outside of [[site]]"),
            ("www.*", "in front only"),
            ("*.*.test", "in front only"),
            ("a.test:80", "without the port"),
            ("https://a.test", "without scheme"),
            ("ä.test", "xn--"),
            ("", "use a name"),
            ("*.", "in front only"),
            ("::1", "brackets"),
        ] {
            let error = hosts.add(host, 2).unwrap_err();
            assert!(error.contains(expected), "{host}: {error}");
        }
    }
}
