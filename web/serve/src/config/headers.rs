//! Reads and checks the header fields that the operator adds to responses.

use std::collections::BTreeMap;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderName,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

/// Fields that describe one message or one connection, so that only the server knows their values.
const SERVER_FIELDS: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    DATE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Returns the fields in a table.
///
/// # Errors
/// The error names the first entry that is not a valid field, or that the server sets itself.
pub(crate) fn read(table: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let field = |(name, value): (&String, &String)| {
        let key: HeaderName = name
            .parse()
            .map_err(|_| format!("headers: `{name}` is not the name of a header field"))?;
        if SERVER_FIELDS.contains(&key) {
            return Err(format!("headers: the server sets `{name}` itself"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| {
            format!("headers: {name} = {value:?}: this cannot be the value of a header field")
        })?;
        Ok((key, value))
    };
    table.iter().map(field).collect()
}
