//! The settings for custom error pages.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Path of each page relative to the root, by status (`404`, `50x`, `4xx`).
pub(crate) type ErrorPages = BTreeMap<String, PathBuf>;

/// Checks that all keys name error statuses.
///
/// # Errors
/// Returns an error about the first key that names no error status.
pub(crate) fn check(settings: &ErrorPages) -> Result<(), String> {
    settings.keys().try_for_each(|key| statuses(key).map(drop))
}

/// Returns the statuses that a key names.
///
/// # Errors
/// The key names no error status. The message gives the valid forms.
pub(crate) fn statuses(key: &str) -> Result<RangeInclusive<u16>, String> {
    let digits = key.trim_end_matches('x');
    let is_well_formed = key.len() == 3 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let first = key.replace('x', "0").parse::<u16>().ok();
    let last_offset = [0, 9, 99].get(key.len() - digits.len());
    first
        .zip(last_offset)
        .filter(|(first, _)| is_well_formed && (400..600).contains(first))
        .map(|(first, last_offset)| first..=first + last_offset)
        .ok_or_else(|| {
            format!("error-pages: `{key}` is not an error status: use e.g. 404, 50x or 4xx")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_error_statuses() {
        assert_eq!(statuses("404"), Ok(404..=404));
        assert_eq!(statuses("50x"), Ok(500..=509));
        assert_eq!(statuses("4xx"), Ok(400..=499));
        for key in [
            "", "x", "xxx", "200", "304", "3xx", "600", "44", "4040", "4x4", "40y", "5xxx", "-40",
            "+40",
        ] {
            assert!(statuses(key).is_err(), "{key}");
        }
    }
}
