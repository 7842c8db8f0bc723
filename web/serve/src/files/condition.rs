//! Evaluates ETags, dates and ranges, according to RFC 9110, sections 8.8, 13 and 14.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, StatusCode};

/// The validators of a file, which identify its state.
#[derive(Debug)]
pub(super) struct Validators {
    pub(super) etag: String,
    /// Set if the bytes may differ from one response to the next.
    pub(super) weak: bool,
    /// Modification time in whole seconds. `None` for a time in the future, which `Last-Modified`
    /// must not contain (RFC 9110, section 8.8.2.1), and for a time not after the beginning of
    /// 1970, which reproducible builds set for all files.
    pub(super) modified: Option<SystemTime>,
}

impl Validators {
    /// Creates validators from modification time and size; `variant` distinguishes the encodings of
    /// a file.
    pub(super) fn new(
        modified: (i64, u64),
        size: u64,
        variant: &str,
        now: SystemTime,
    ) -> Validators {
        let (seconds, nanos) = modified;
        let positive = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
        let time =
            positive.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        Validators {
            etag: etag([seconds.cast_unsigned(), nanos, size], variant),
            weak: false,
            modified: time.filter(|time| *time <= now),
        }
    }
}

/// Formats `"SECONDS.NANOS-SIZE…"` in hexadecimal digits. This function does not use `format!`,
/// because every response has an ETag and `format!` is slow.
fn etag(numbers: [u64; 3], variant: &str) -> String {
    let mut tag = String::with_capacity(64);
    for (number, separator) in numbers.into_iter().zip(['"', '.', '-']) {
        tag.push(separator);
        let digits = (u64::BITS - (number | 1).leading_zeros()).div_ceil(4);
        for position in (0..digits).rev() {
            let digit = (number >> (4 * position)) as usize & 0xf;
            tag.push(char::from(b"0123456789abcdef"[digit]));
        }
    }
    tag.push_str(variant);
    tag.push('"');
    tag
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Whole,
    Part(Range<u64>),
    NotModified,
    PreconditionFailed,
    /// The range is outside of the file.
    Unsatisfiable,
}

impl Outcome {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Outcome::Whole => StatusCode::OK,
            Outcome::Part(_) => StatusCode::PARTIAL_CONTENT,
            Outcome::NotModified => StatusCode::NOT_MODIFIED,
            Outcome::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Outcome::Unsatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        }
    }
}

/// Evaluates the conditions in the order of RFC 9110, section 13.2.2. Without `ranges` the `Range`
/// field is ignored.
pub(super) fn evaluate(headers: &HeaderMap, file: &Validators, size: u64, ranges: bool) -> Outcome {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let date =
        |name: HeaderName| text(name).and_then(|value| httpdate::parse_http_date(value).ok());
    if headers.contains_key(IF_MATCH) {
        if !contains_tag(headers, IF_MATCH, file, false) {
            return Outcome::PreconditionFailed;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_UNMODIFIED_SINCE), file.modified)
        && modified > since
    {
        return Outcome::PreconditionFailed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        if contains_tag(headers, IF_NONE_MATCH, file, true) {
            return Outcome::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_MODIFIED_SINCE), file.modified)
        && modified <= since
    {
        return Outcome::NotModified;
    }
    let range_applies = match text(IF_RANGE) {
        None => !headers.contains_key(IF_RANGE),
        Some(tag) if tag.starts_with('"') => tag == file.etag && !file.weak,
        Some(other) => {
            let date = httpdate::parse_http_date(other).ok();
            date.is_some() && date == file.modified
        }
    };
    match text(RANGE) {
        Some(range) if ranges && range_applies => parse_range(range, size),
        _ => Outcome::Whole,
    }
}

/// Returns whether the field `name` lists the tag of the file. `weak` selects the weak comparison.
fn contains_tag(headers: &HeaderMap, name: HeaderName, file: &Validators, weak: bool) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| {
            let tag = if weak {
                tag.strip_prefix("W/").unwrap_or(tag)
            } else {
                tag
            };
            tag == "*" || (tag == file.etag && (weak || !file.weak))
        })
}

/// Reads one range of bytes. Several ranges, other units and malformed ranges count as no range.
fn parse_range(range: &str, size: u64) -> Outcome {
    let range = range.trim().split_once('=');
    let Some((_, set)) = range.filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes")) else {
        return Outcome::Whole;
    };
    let Some((first, last)) = set.trim().split_once('-') else {
        return Outcome::Whole;
    };
    let number = |text: &str| -> Option<u64> {
        let text = text.trim();
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())?
    };
    let range = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => return Outcome::Unsatisfiable,
            Some(length) => size.saturating_sub(length)..size,
            None => return Outcome::Whole,
        },
        (first, "") => match number(first) {
            Some(first) => first..size,
            None => return Outcome::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
            _ => return Outcome::Whole,
        },
    };
    if range.start >= size {
        return Outcome::Unsatisfiable;
    }
    Outcome::Part(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn tags_are_in_hexadecimal_digits() {
        for numbers in [
            [0; 3],
            [u64::MAX; 3],
            [0x10, 0xf, 1 << 60],
            [(-1i64).cast_unsigned(), 9, 10],
        ] {
            let [seconds, nanos, size] = numbers;
            assert_eq!(
                etag(numbers, "gzip"),
                format!("\"{seconds:x}.{nanos:x}-{size:x}gzip\"")
            );
        }
    }

    fn evaluate_with(pairs: &[(&'static str, &str)]) -> Outcome {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let file = Validators::new((784_111_777, 5), 1000, "", SystemTime::now());
        assert_eq!(file.etag, "\"2ebc98a1.5-3e8\"");
        evaluate(&headers, &file, 1000, true)
    }

    const TAG: &str = "\"2ebc98a1.5-3e8\"";
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn a_cached_response_is_not_sent_again() {
        assert_eq!(
            evaluate_with(&[("if-none-match", TAG)]),
            Outcome::NotModified
        );
        assert_eq!(
            evaluate_with(&[("if-none-match", &format!("\"x\", W/{TAG}"))]),
            Outcome::NotModified
        );
        assert_eq!(
            evaluate_with(&[("if-none-match", "*")]),
            Outcome::NotModified
        );
        assert_eq!(evaluate_with(&[("if-none-match", "\"x\"")]), Outcome::Whole);
        assert_eq!(
            evaluate_with(&[("if-modified-since", DATE)]),
            Outcome::NotModified
        );
        assert_eq!(
            evaluate_with(&[("if-modified-since", EARLIER)]),
            Outcome::Whole
        );
        // The tag takes precedence over the date.
        assert_eq!(
            evaluate_with(&[("if-none-match", "\"x\""), ("if-modified-since", LATER)]),
            Outcome::Whole
        );
    }

    #[test]
    fn failed_preconditions_are_reported() {
        assert_eq!(
            evaluate_with(&[("if-match", "\"x\"")]),
            Outcome::PreconditionFailed
        );
        assert_eq!(
            evaluate_with(&[("if-match", &format!("W/{TAG}"))]),
            Outcome::PreconditionFailed
        );
        assert_eq!(evaluate_with(&[("if-match", TAG)]), Outcome::Whole);
        assert_eq!(
            evaluate_with(&[("if-unmodified-since", EARLIER)]),
            Outcome::PreconditionFailed
        );
        assert_eq!(
            evaluate_with(&[("if-unmodified-since", DATE)]),
            Outcome::Whole
        );
    }

    #[test]
    fn one_range_is_served() {
        for (range, expected) in [
            ("bytes=0-499", Outcome::Part(0..500)),
            ("bytes=500-", Outcome::Part(500..1000)),
            ("bytes=-1", Outcome::Part(999..1000)),
            ("bytes=-5000", Outcome::Part(0..1000)),
            ("bytes=999-99999999999999999", Outcome::Part(999..1000)),
            ("bytes=1000-", Outcome::Unsatisfiable),
            ("bytes=-0", Outcome::Unsatisfiable),
            ("bytes=5-2", Outcome::Whole),
            ("bytes=0-1,5-6", Outcome::Whole),
            ("bytes=+1-2", Outcome::Whole),
            ("Bytes=0-0", Outcome::Part(0..1)),
            ("bytes=", Outcome::Whole),
            ("bytes=-", Outcome::Whole),
            ("bytes", Outcome::Whole),
            ("lines=1-2", Outcome::Whole),
            ("bytes=99999999999999999999-", Outcome::Whole),
        ] {
            assert_eq!(evaluate_with(&[("range", range)]), expected, "{range}");
        }
    }

    #[test]
    fn if_range_of_another_version_gets_the_whole_file() {
        let range = ("range", "bytes=0-0");
        assert_eq!(
            evaluate_with(&[range, ("if-range", TAG)]),
            Outcome::Part(0..1)
        );
        assert_eq!(
            evaluate_with(&[range, ("if-range", DATE)]),
            Outcome::Part(0..1)
        );
        assert_eq!(
            evaluate_with(&[range, ("if-range", "\"x\"")]),
            Outcome::Whole
        );
        assert_eq!(
            evaluate_with(&[range, ("if-range", &format!("W/{TAG}"))]),
            Outcome::Whole
        );
        assert_eq!(evaluate_with(&[range, ("if-range", LATER)]), Outcome::Whole);
    }
}
