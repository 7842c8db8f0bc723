//! Determines the media type of a file, and the codings that a client accepts for it.

use std::borrow::Cow;

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};

/// Returns the media type for the extension of a name. Texts are UTF-8.
pub(crate) fn content_type(name: &str) -> Cow<'static, str> {
    let kind = mime_guess::from_path(name)
        .first_raw()
        .unwrap_or("application/octet-stream");
    Cow::Borrowed(match kind {
        "text/html" => "text/html; charset=utf-8",
        "text/plain" => "text/plain; charset=utf-8",
        "text/css" => "text/css; charset=utf-8",
        "text/javascript" | "application/javascript" => "text/javascript; charset=utf-8",
        "text/markdown" => "text/markdown; charset=utf-8",
        "text/csv" => "text/csv; charset=utf-8",
        kind if kind.starts_with("text/") => return format!("{kind}; charset=utf-8").into(),
        kind => kind,
    })
}

/// Returns a media type as the value of a header field.
pub(crate) fn field(kind: Cow<'static, str>) -> HeaderValue {
    match kind {
        Cow::Borrowed(kind) => HeaderValue::from_static(kind),
        Cow::Owned(kind) => HeaderValue::from_str(&kind)
            .unwrap_or(HeaderValue::from_static("text/plain; charset=utf-8")),
    }
}

pub(super) fn is_text(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or(kind);
    kind.starts_with("text/")
        || kind.ends_with("json")
        || kind.ends_with("xml")
        || matches!(kind, "application/wasm" | "font/ttf" | "font/otf")
}

pub(super) fn may_be_precompressed(kind: &str) -> bool {
    is_text(kind) || kind == "application/octet-stream"
}

/// Returns the names and file suffixes of the supported codings that the client accepts, ordered by
/// the client's weights (RFC 9110, section 12.5.3). At equal weights br comes first, because its
/// results are smaller.
pub(super) fn accepted_codings(
    headers: &HeaderMap,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let weight = |coding: &str| {
        headers
            .get_all(ACCEPT_ENCODING)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .find_map(|item| {
                let mut parts = item.split(';').map(str::trim);
                let is_coding = parts.next()?.eq_ignore_ascii_case(coding);
                let weight = parts
                    .filter_map(|part| part.split_once('='))
                    .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
                    .map_or(1000, |(_, q)| thousandths(q.trim()).unwrap_or(0));
                is_coding.then_some(weight)
            })
    };
    let any_weight = weight("*").unwrap_or(0);
    let identity_weight = weight("identity").unwrap_or(0);
    let mut codings = [("br", ".br"), ("gzip", ".gz")].map(|(coding, suffix)| {
        let weight = weight(coding).unwrap_or(any_weight);
        (weight, coding, suffix)
    });
    codings.sort_by_key(|(weight, ..)| std::cmp::Reverse(*weight));
    codings
        .into_iter()
        .filter(move |(weight, _, _)| *weight > 0 && *weight >= identity_weight)
        .map(|(_, coding, suffix)| (coding, suffix))
}

/// Reads a weight from 0 to 1 with at most three digits, in thousandths (RFC 9110, section 12.4.2).
fn thousandths(text: &str) -> Option<u16> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    if rest.len() > 3 || !rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = rest.bytes().chain(std::iter::repeat(b'0')).take(3);
    let rest = digits.fold(0, |number, digit| 10 * number + u16::from(digit - b'0'));
    match whole {
        "0" => Some(rest),
        "1" if rest == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_guessed_and_text_is_utf_8() {
        for (name, kind) in [
            ("a/index.html", "text/html; charset=utf-8"),
            ("x.js", "text/javascript; charset=utf-8"),
            ("x.vtt", "text/vtt; charset=utf-8"),
            ("x.rs", "text/x-rust; charset=utf-8"),
            ("x.JSON", "application/json"),
            ("x.png", "image/png"),
            ("x.svg", "image/svg+xml"),
            ("x.wasm", "application/wasm"),
            ("x.woff2", "font/woff2"),
            ("x.pdf", "application/pdf"),
            ("x.mp4", "video/mp4"),
            ("x", "application/octet-stream"),
        ] {
            assert_eq!(content_type(name), kind, "{name}");
        }
    }

    #[test]
    fn codings_are_ordered_by_the_weights_of_the_client() {
        let codings_for = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            accepted_codings(&headers)
                .map(|(coding, _)| coding)
                .collect::<Vec<_>>()
        };
        for (value, codings) in [
            ("gzip, deflate, br", &["br", "gzip"][..]),
            ("gzip, deflate, br;q=0.5", &["gzip", "br"]),
            ("br;q=0, gzip;q=1.0", &["gzip"]),
            ("br; Q=0.000, GZIP ; q = 0.1", &["gzip"]),
            ("*", &["br", "gzip"]),
            ("*, br;q=0", &["gzip"]),
            ("*;q=0, gzip", &["gzip"]),
            ("identity;q=0, gzip", &["gzip"]),
            ("identity;q=0.8, gzip;q=0.5", &[]),
            ("br;q=0.501, gzip;q=0.51", &["gzip", "br"]),
            ("gzip;q=x", &[]),
            ("gzip;q=2", &[]),
            ("gzip;q=1.001", &[]),
            ("gzip;q=0.0001", &[]),
            ("gzip;q=-1", &[]),
            ("gzip;q=1e3", &[]),
            ("gzip;q=inf", &[]),
            ("gzip;q=NaN", &[]),
            ("gzip;q=", &[]),
            ("identity", &[]),
            ("", &[]),
        ] {
            assert_eq!(codings_for(value), codings, "{value}");
        }
    }
}
