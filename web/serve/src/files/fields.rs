//! The header fields that describe a file. They are created once for all requests that share it.

use std::borrow::Cow;
use std::time::SystemTime;

use http::HeaderValue;

use super::condition::Validators;
use super::kind::content_type;
use super::open::Found;

#[derive(Debug)]
pub(super) struct Fields {
    pub(super) kind: Cow<'static, str>,
    pub(super) validators: Validators,
    pub(super) etag: Option<HeaderValue>,
    pub(super) modified: Option<HeaderValue>,
}

impl Fields {
    /// Creates the fields for a coding, whose name is part of the validators. With `weak`, the
    /// bytes may differ from one response to the next.
    pub(super) fn new(kind: Cow<'static, str>, found: &Found, coding: &str, weak: bool) -> Fields {
        let now = SystemTime::now();
        let mut validators = Validators::new(found.modified, found.size, coding, now);
        validators.weak = weak;
        let etag = if weak {
            HeaderValue::try_from(format!("W/{}", validators.etag))
        } else {
            HeaderValue::from_str(&validators.etag)
        };
        let modified = validators.modified.map(httpdate::fmt_http_date);
        Fields {
            kind,
            etag: etag.ok(),
            modified: modified.and_then(|modified| HeaderValue::try_from(modified).ok()),
            validators,
        }
    }
}

impl Found {
    /// Returns the fields of the uncompressed file; `name` is the name by which it was found.
    pub(super) fn fields(&self, name: &str) -> &Fields {
        self.fields
            .get_or_init(|| Fields::new(content_type(name), self, "", false))
    }
}
