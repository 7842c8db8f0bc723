//! The operator's rules, which set the levels of requests and override the priority that the client
//! requests.
//!
//! A rule matches if all its conditions match; the first match decides. A rule is written as
//! `CONDITIONS=LEVEL` on the command line, and as a table in the configuration:
//!
//! ```
//! use upshift_serve::Rule;
//!
//! let rule: Rule = "POST /api peer:10.0.0.0/8 header:x-tier:gold=8".parse()?;
//! assert_eq!(rule.to_string(), "POST /api peer:10.0.0.0/8 header:x-tier:gold=8");
//! # Ok::<(), String>(())
//! ```

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, de};
use upshift::Level;

use crate::config::units;
use crate::request::host;

const KNOWN_METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) peer: IpAddr,
    pub(crate) headers: HeaderMap,
}

impl Facts {
    pub(crate) fn host(&self) -> Option<&str> {
        let is_saved = self.headers.contains_key(HOST);
        is_saved.then(|| host::of_saved(&self.method, &self.uri, &self.headers))
    }
}

/// A rule: conditions, and a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Path to which the rule applies; it also applies to all paths below this path.
    pub path: Option<String>,
    /// Method of the requests.
    pub method: Option<Method>,
    /// Header field of the requests, and its required value if there is one.
    pub header: Option<(HeaderName, Option<HeaderValue>)>,
    /// Network of the clients.
    pub peer: Option<Network>,
    /// Level of the requests that match.
    pub level: Level,
}

impl Rule {
    pub(crate) fn matches(&self, facts: &Facts, normalized: &str) -> bool {
        let path_matches = self.path.as_ref().is_none_or(|prefix| {
            is_below(normalized, prefix) || is_below(facts.uri.path(), prefix)
        });
        let method = self.method.as_ref();
        let method_matches = method.is_none_or(|method| *method == facts.method);
        let peer_matches = self.peer.is_none_or(|network| network.contains(facts.peer));
        path_matches && method_matches && peer_matches && self.header_matches(&facts.headers)
    }

    pub(crate) fn warning(&self) -> Option<String> {
        let method = self.method.as_ref()?;
        let is_known = KNOWN_METHODS.contains(method);
        (!is_known).then(|| {
            format!("priority {self}: `{method}` is no method of HTTP; methods are upper case")
        })
    }

    fn header_matches(&self, headers: &HeaderMap) -> bool {
        match &self.header {
            None => true,
            Some((name, None)) => headers.contains_key(name),
            Some((name, Some(value))) => headers.get_all(name).iter().any(|actual| actual == value),
        }
    }
}

/// Decodes a path and removes empty segments, so that a client that writes `/%61pi` or `//api` does
/// not evade a rule for `/api`.
pub(crate) fn normalize(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let segments = decoded.split('/');
    let mut normalized = String::with_capacity(decoded.len());
    for segment in segments.filter(|segment| !matches!(*segment, "" | ".")) {
        normalized.push('/');
        normalized.push_str(segment);
    }
    Cow::Owned(normalized)
}

fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let (conditions, level) = text.rsplit_once('=').ok_or_else(|| {
            format!("`{text}`: write CONDITIONS=LEVEL, e.g. `/api=8` or `POST peer:10.0.0.0/8=40`")
        })?;
        let mut rule = Rule {
            path: None,
            method: None,
            header: None,
            peer: None,
            level: parse_level(level)?,
        };
        for word in conditions.split_whitespace() {
            let (kind, is_duplicate) = if word.starts_with('/') {
                ("path", rule.path.replace(word.to_owned()).is_some())
            } else if let Some(network) = word.strip_prefix("peer:") {
                ("network", rule.peer.replace(network.parse()?).is_some())
            } else if let Some(header) = word.strip_prefix("header:") {
                (
                    "header",
                    rule.header.replace(parse_header(header)?).is_some(),
                )
            } else if word.chars().all(|c| c.is_ascii_uppercase() || c == '-') {
                ("method", rule.method.replace(parse_method(word)?).is_some())
            } else {
                return Err(format!(
                    "`{word}` is no condition: use a path (/api), a method (POST), header:NAME[:VALUE] or peer:NETWORK"
                ));
            };
            if is_duplicate {
                return Err(format!(
                    "`{word}`: a rule has one {kind} at most; write a rule for each"
                ));
            }
        }
        Ok(rule)
    }
}

fn parse_level(text: &str) -> Result<Level, String> {
    text.trim()
        .parse()
        .map_err(|error| format!("`{text}` is {error}"))
}

fn parse_method(text: &str) -> Result<Method, String> {
    Method::from_bytes(text.as_bytes()).map_err(|_| format!("`{text}` is not a method"))
}

fn parse_header(text: &str) -> Result<(HeaderName, Option<HeaderValue>), String> {
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name, Some(value.trim())),
        None => (text, None),
    };
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("`{name}` is not the name of a header"))?;
    let value = value
        .map(|value| {
            value
                .parse()
                .map_err(|_| format!("`{value}` cannot be the value of a header"))
        })
        .transpose()?;
    Ok((name, value))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.method.as_ref().map(ToString::to_string));
        words.extend(self.path.clone());
        words.extend(self.peer.map(|network| format!("peer:{network}")));
        if let Some((name, value)) = &self.header {
            words.push(match value {
                Some(value) => format!(
                    "header:{name}:{}",
                    String::from_utf8_lossy(value.as_bytes())
                ),
                None => format!("header:{name}"),
            });
        }
        write!(f, "{}={}", words.join(" "), self.level)
    }
}

/// Reads each field by a separate function, so that an error refers to the field's value.
impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Rule, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(default, deserialize_with = "path")]
            path: Option<String>,
            #[serde(default, deserialize_with = "method")]
            method: Option<Method>,
            #[serde(default, deserialize_with = "header")]
            header: Option<(HeaderName, Option<HeaderValue>)>,
            #[serde(default, deserialize_with = "peer")]
            peer: Option<Network>,
            #[serde(deserialize_with = "units::read_level")]
            level: u8,
        }
        fn read<'de, T, D: Deserializer<'de>>(
            from: D,
            parse: impl Fn(&str) -> Result<T, String>,
        ) -> Result<Option<T>, D::Error> {
            let text = String::deserialize(from)?;
            parse(&text).map(Some).map_err(de::Error::custom)
        }
        fn path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
            read(from, |path| {
                let is_path = path.starts_with('/');
                let error = || format!("the path `{path}` must begin with /");
                is_path.then(|| path.to_owned()).ok_or_else(error)
            })
        }
        fn method<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Method>, D::Error> {
            read(from, parse_method)
        }
        type Header = (HeaderName, Option<HeaderValue>);
        fn header<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Header>, D::Error> {
            read(from, parse_header)
        }
        fn peer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Network>, D::Error> {
            read(from, str::parse)
        }
        let Table {
            path,
            method,
            header,
            peer,
            level,
        } = Table::deserialize(from)?;
        Ok(Rule {
            path,
            method,
            header,
            peer,
            level: Level::new(level).map_err(de::Error::custom)?,
        })
    }
}

/// Addresses with a common prefix, `10.0.0.0/8`, or a single address without `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns whether the network contains an address. An IPv4 address that is mapped into IPv6
    /// counts as IPv4.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(mine), IpAddr::V4(theirs)) => {
                let difference = mine.to_bits() ^ theirs.to_bits();
                difference
                    .checked_shr(32 - u32::from(self.bits))
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(mine), IpAddr::V6(theirs)) => {
                let difference = mine.to_bits() ^ theirs.to_bits();
                difference
                    .checked_shr(128 - u32::from(self.bits))
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let error =
            || format!("`{text}` is not a network: write e.g. `10.0.0.0/8`, `::1` or `fd00::/8`");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| error())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let max_bits = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(max_bits);
        (bits <= max_bits)
            .then_some(Network { address, bits })
            .ok_or_else(error)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    fn matches(
        rule: &str,
        method: &str,
        path: &str,
        peer: &str,
        header: Option<(&'static str, &str)>,
    ) -> bool {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        let rule: Rule = rule.parse().unwrap();
        let facts = Facts {
            method: method.parse().unwrap(),
            uri: path.parse().unwrap(),
            peer: peer.parse().unwrap(),
            headers,
        };
        rule.matches(&facts, &normalize(facts.uri.path()))
    }

    #[test]
    fn a_path_matches_whole_segments() {
        for (path, expected) in [
            ("/api", true),
            ("/api/x?q", true),
            ("/apis", false),
            ("/%61p%69/x", true),
            ("//api//x", true),
            ("/./api", true),
            ("/%2fapi", true),
            ("/x%2fapi", false),
            ("/", false),
        ] {
            assert_eq!(
                matches("/api=8", "GET", path, "1.2.3.4", None),
                expected,
                "{path}"
            );
            assert_eq!(
                matches("/api/=8", "GET", path, "1.2.3.4", None),
                expected,
                "{path}"
            );
        }
        assert!(matches("/=8", "GET", "/anything", "1.2.3.4", None));
    }

    #[test]
    fn all_conditions_must_hold() {
        let rule = "POST /api peer:10.0.0.0/8 header:x-tier:gold=8";
        let gold = Some(("x-tier", "gold"));
        assert!(matches(rule, "POST", "/api/a", "10.1.2.3", gold));
        assert!(!matches(rule, "GET", "/api/a", "10.1.2.3", gold));
        assert!(!matches(rule, "POST", "/b", "10.1.2.3", gold));
        assert!(!matches(rule, "POST", "/api/a", "11.1.2.3", gold));
        assert!(!matches(
            rule,
            "POST",
            "/api/a",
            "10.1.2.3",
            Some(("x-tier", "tin"))
        ));
        assert!(matches(
            "header:x-tier=8",
            "GET",
            "/",
            "::1",
            Some(("x-tier", "tin"))
        ));
    }

    #[test]
    fn networks_of_both_families_contain_their_addresses() {
        let contains = |network: &str, address: &str| {
            network
                .parse::<Network>()
                .unwrap()
                .contains(address.parse().unwrap())
        };
        assert!(contains("0.0.0.0/0", "9.9.9.9"));
        assert!(contains("192.168.1.7", "192.168.1.7") && !contains("192.168.1.7", "192.168.1.8"));
        assert!(contains("10.0.0.0/8", "::ffff:10.2.3.4"));
        assert!(contains("fd00::/8", "fdff::1") && !contains("fd00::/8", "fe80::1"));
        assert!(!contains("::/0", "1.2.3.4"));
        assert!("10.0.0.0/33".parse::<Network>().is_err());
    }

    #[test]
    fn errors_say_what_is_wrong_with_a_rule() {
        for (rule, expected) in [
            ("/api", "CONDITIONS=LEVEL"),
            ("/api=64", "0 (most urgent) to 63"),
            ("api=3", "is no condition"),
            ("peer:nowhere=3", "is not a network"),
            ("GET POST=3", "`POST`: a rule has one method at most"),
            ("/a /b=3", "one path"),
            ("peer:::1 peer:::2=3", "one network"),
            ("header:a header:b=3", "one header"),
        ] {
            let error = rule.parse::<Rule>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
    #[test]
    fn fuzz_rules() {
        let samples: [&[u8]; 3] = [
            b"POST /api peer:10.0.0.0/8 header:x-tier:gold=8",
            b"/%61pi//b/./c=63",
            b"peer:2001:db8::/32 header:x=0",
        ];
        let words = [
            "peer:",
            "header:",
            "GET",
            "=",
            "/",
            "%2e",
            "//",
            "/.",
            "127.0.0.1",
            "::",
        ];
        fuzz::fuzz("rules", &samples, &words, 5000, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if text.starts_with('/') {
                let normalized = normalize(&text);
                assert!(!normalized.contains("//"), "{normalized}");
            }
            let rule = text.parse::<Rule>();
            if let Ok(rule) = &rule {
                assert_eq!(rule.to_string().parse().as_ref(), Ok(rule), "{rule}");
            }
            let error = rule.as_ref().err().map(|error| fuzz::error_kind(error));
            let facts = rule.ok().map(|rule| {
                (
                    rule.path.is_some(),
                    rule.method.is_some(),
                    rule.header,
                    rule.peer.is_some(),
                )
            });
            fuzz::hash_of((
                error,
                facts.map(|(path, method, header, peer)| (path, method, header.is_some(), peer)),
            ))
        });
    }
}
