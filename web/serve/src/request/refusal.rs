//! Refused requests and their answers.

use http::header::{CONNECTION, HeaderValue};
use http::{Response, StatusCode, Version};

use crate::connection::heads::UNKNOWN_CODING;
use crate::request::body::Body;
use crate::request::reply;

/// The reason why a request is refused.
pub(crate) enum Refusal {
    NoTarget,
    NoHost,
    Misdirected,
    LongUrl,
    LongHead,
    TooLarge,
    TooOften,
    Overloaded,
    UnknownCoding,
}

impl Refusal {
    /// Returns the answer to the client.
    pub(crate) fn response(&self, version: Version) -> Response<Body> {
        match self {
            Refusal::NoTarget => {
                let why = "a request names a path\n";
                reply::text(StatusCode::BAD_REQUEST, why)
            }
            Refusal::NoHost => {
                let why = "a request names one host\n";
                reply::text(StatusCode::BAD_REQUEST, why)
            }
            Refusal::Misdirected => {
                let why = "this connection is to another host\n";
                reply::text(StatusCode::MISDIRECTED_REQUEST, why)
            }
            Refusal::LongUrl => {
                let why = "the URL is too long\n";
                closing(reply::text(StatusCode::URI_TOO_LONG, why), version)
            }
            Refusal::LongHead => {
                let why = "the header fields are too long\n";
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                closing(reply::text(status, why), version)
            }
            Refusal::TooLarge => {
                let why = "the body is too large\n";
                closing(reply::text(StatusCode::PAYLOAD_TOO_LARGE, why), version)
            }
            Refusal::UnknownCoding => {
                let response = reply::text(StatusCode::NOT_IMPLEMENTED, UNKNOWN_CODING);
                closing(response, version)
            }
            Refusal::TooOften => reply::later(StatusCode::TOO_MANY_REQUESTS, "too many requests\n"),
            Refusal::Overloaded => reply::later(StatusCode::SERVICE_UNAVAILABLE, "overloaded\n"),
        }
    }
}

/// Closes the connection after a response, instead of reading the whole body; in HTTP/2 only the
/// stream is closed.
fn closing(mut response: Response<Body>, version: Version) -> Response<Body> {
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}
