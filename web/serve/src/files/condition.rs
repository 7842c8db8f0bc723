//! ETags, dates and ranges: RFC 9110, sections 8.8, 13 and 14.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, StatusCode};

/// The validators of a file: they identify its state.
#[derive(Debug)]
pub(super) struct Validators {
    /// ETag, with its quotes.
    pub(super) etag: String,
    /// Set if the bytes may differ from one response to the next.
    pub(super) weak: bool,
    /// Modification time to the second, as HTTP dates are. `None` for a time that says nothing
    /// about the file: in the future, where a `Last-Modified` must not be (RFC 9110, section
    /// 8.8.2.1), or not after the beginning of 1970, which reproducible builds give to all files.
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
        let since = u64::try_from(seconds).ok().filter(|since| *since > 0);
        let time = since.and_then(|since| UNIX_EPOCH.checked_add(Duration::from_secs(since)));
        Validators {
            etag: etag([seconds.cast_unsigned(), nanos, size], variant),
            weak: false,
            modified: time.filter(|time| *time <= now),
        }
    }
}

/// Formats `"SECONDS.NANOS-SIZE…"` in hexadecimal digits. Written by hand, because every answer has
/// an ETag and `format!` takes a twentieth of the time of an answer.
fn etag(numbers: [u64; 3], variant: &str) -> String {
    let mut tag = String::with_capacity(64);
    for (number, before) in numbers.into_iter().zip(['"', '.', '-']) {
        tag.push(before);
        let digits = (u64::BITS - (number | 1).leading_zeros()).div_ceil(4);
        for at in (0..digits).rev() {
            let digit = (number >> (4 * at)) as usize & 0xf;
            tag.push(char::from(b"0123456789abcdef"[digit]));
        }
    }
    tag.push_str(variant);
    tag.push('"');
    tag
}

/// The result of conditions and ranges for a GET.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Whole,
    Part(Range<u64>),
    NotModified,
    PreconditionFailed,
    /// The range lies outside of the file.
    Unsatisfiable,
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Answer::Whole => StatusCode::OK,
            Answer::Part(_) => StatusCode::PARTIAL_CONTENT,
            Answer::NotModified => StatusCode::NOT_MODIFIED,
            Answer::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Answer::Unsatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        }
    }
}

/// Evaluates the conditions in the order of RFC 9110, section 13.2.2. Without `ranges` the `Range`
/// field is ignored.
pub(super) fn evaluate(headers: &HeaderMap, file: &Validators, size: u64, ranges: bool) -> Answer {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let date =
        |name: HeaderName| text(name).and_then(|value| httpdate::parse_http_date(value).ok());
    if headers.contains_key(IF_MATCH) {
        if !lists(headers, IF_MATCH, file, false) {
            return Answer::PreconditionFailed;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_UNMODIFIED_SINCE), file.modified)
        && modified > since
    {
        return Answer::PreconditionFailed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        if lists(headers, IF_NONE_MATCH, file, true) {
            return Answer::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (date(IF_MODIFIED_SINCE), file.modified)
        && modified <= since
    {
        return Answer::NotModified;
    }
    let fresh = match text(IF_RANGE) {
        None => !headers.contains_key(IF_RANGE),
        Some(tag) if tag.starts_with('"') => tag == file.etag && !file.weak,
        Some(other) => {
            let date = httpdate::parse_http_date(other).ok();
            date.is_some() && date == file.modified
        }
    };
    match text(RANGE) {
        Some(range) if ranges && fresh => part_of(range, size),
        _ => Answer::Whole,
    }
}

/// Tells whether the list contains the ETag. With `weak`, a weak tag is as good as a strong one.
fn lists(headers: &HeaderMap, name: HeaderName, file: &Validators, weak: bool) -> bool {
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
fn part_of(range: &str, size: u64) -> Answer {
    let range = range.trim().split_once('=');
    let Some((_, set)) = range.filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes")) else {
        return Answer::Whole;
    };
    let Some((first, last)) = set.trim().split_once('-') else {
        return Answer::Whole;
    };
    let number = |text: &str| -> Option<u64> {
        let text = text.trim();
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())?
    };
    let range = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => return Answer::Unsatisfiable,
            Some(length) => size.saturating_sub(length)..size,
            None => return Answer::Whole,
        },
        (first, "") => match number(first) {
            Some(first) => first..size,
            None => return Answer::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
            _ => return Answer::Whole,
        },
    };
    if range.start >= size {
        return Answer::Unsatisfiable;
    }
    Answer::Part(range)
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

    fn with(pairs: &[(&'static str, &str)]) -> Answer {
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
    fn what_the_client_has_is_not_sent_again() {
        assert_eq!(with(&[("if-none-match", TAG)]), Answer::NotModified);
        assert_eq!(
            with(&[("if-none-match", &format!("\"x\", W/{TAG}"))]),
            Answer::NotModified
        );
        assert_eq!(with(&[("if-none-match", "*")]), Answer::NotModified);
        assert_eq!(with(&[("if-none-match", "\"x\"")]), Answer::Whole);
        assert_eq!(with(&[("if-modified-since", DATE)]), Answer::NotModified);
        assert_eq!(with(&[("if-modified-since", EARLIER)]), Answer::Whole);
        // The tag takes precedence over the date.
        assert_eq!(
            with(&[("if-none-match", "\"x\""), ("if-modified-since", LATER)]),
            Answer::Whole
        );
    }

    #[test]
    fn preconditions_that_fail_are_said() {
        assert_eq!(with(&[("if-match", "\"x\"")]), Answer::PreconditionFailed);
        assert_eq!(
            with(&[("if-match", &format!("W/{TAG}"))]),
            Answer::PreconditionFailed
        );
        assert_eq!(with(&[("if-match", TAG)]), Answer::Whole);
        assert_eq!(
            with(&[("if-unmodified-since", EARLIER)]),
            Answer::PreconditionFailed
        );
        assert_eq!(with(&[("if-unmodified-since", DATE)]), Answer::Whole);
    }

    #[test]
    fn one_range_is_served() {
        for (range, expected) in [
            ("bytes=0-499", Answer::Part(0..500)),
            ("bytes=500-", Answer::Part(500..1000)),
            ("bytes=-1", Answer::Part(999..1000)),
            ("bytes=-5000", Answer::Part(0..1000)),
            ("bytes=999-99999999999999999", Answer::Part(999..1000)),
            ("bytes=1000-", Answer::Unsatisfiable),
            ("bytes=-0", Answer::Unsatisfiable),
            ("bytes=5-2", Answer::Whole),
            ("bytes=0-1,5-6", Answer::Whole),
            ("bytes=+1-2", Answer::Whole),
            ("Bytes=0-0", Answer::Part(0..1)),
            ("bytes=", Answer::Whole),
            ("bytes=-", Answer::Whole),
            ("bytes", Answer::Whole),
            ("lines=1-2", Answer::Whole),
            ("bytes=99999999999999999999-", Answer::Whole),
        ] {
            assert_eq!(with(&[("range", range)]), expected, "{range}");
        }
    }

    #[test]
    fn a_range_of_another_state_of_the_file_is_not_sent() {
        let range = ("range", "bytes=0-0");
        assert_eq!(with(&[range, ("if-range", TAG)]), Answer::Part(0..1));
        assert_eq!(with(&[range, ("if-range", DATE)]), Answer::Part(0..1));
        assert_eq!(with(&[range, ("if-range", "\"x\"")]), Answer::Whole);
        assert_eq!(
            with(&[range, ("if-range", &format!("W/{TAG}"))]),
            Answer::Whole
        );
        assert_eq!(with(&[range, ("if-range", LATER)]), Answer::Whole);
    }
}
