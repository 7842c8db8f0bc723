//! The reasons for which requests are refused, and the responses to these requests.

use http::header::{CONNECTION, HeaderValue};
use http::{Response, StatusCode, Version};

use crate::connection::heads::UNKNOWN_CODING;
use crate::request::body::Body;
use crate::request::reply;

/// The reason why a request is refused.
pub(crate) enum Refusal {
    InvalidTarget,
    InvalidHost,
    Misdirected,
    LongUrl,
    LongHead,
    TooLarge,
    RateLimited,
    Overloaded,
    UnknownCoding,
}

impl Refusal {
    pub(crate) fn response(&self, version: Version) -> Response<Body> {
        match self {
            Refusal::InvalidTarget => {
                let text = "the request must name a path\n";
                reply::text(StatusCode::BAD_REQUEST, text)
            }
            Refusal::InvalidHost => {
                let text = "the request must name exactly one host\n";
                reply::text(StatusCode::BAD_REQUEST, text)
            }
            Refusal::Misdirected => {
                let text = "this connection is to another host\n";
                reply::text(StatusCode::MISDIRECTED_REQUEST, text)
            }
            Refusal::LongUrl => {
                let text = "the URL is too long\n";
                with_close(reply::text(StatusCode::URI_TOO_LONG, text), version)
            }
            Refusal::LongHead => {
                let text = "the header fields are too long\n";
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                with_close(reply::text(status, text), version)
            }
            Refusal::TooLarge => {
                let text = "the body is too large\n";
                with_close(reply::text(StatusCode::PAYLOAD_TOO_LARGE, text), version)
            }
            Refusal::UnknownCoding => {
                let response = reply::text(StatusCode::NOT_IMPLEMENTED, UNKNOWN_CODING);
                with_close(response, version)
            }
            Refusal::RateLimited => {
                reply::retry_later(StatusCode::TOO_MANY_REQUESTS, "too many requests\n")
            }
            Refusal::Overloaded => {
                reply::retry_later(StatusCode::SERVICE_UNAVAILABLE, "overloaded\n")
            }
        }
    }
}

/// Closes the connection after a response, which saves reading the whole body of the request.
/// HTTP/2 closes only the stream.
fn with_close(mut response: Response<Body>, version: Version) -> Response<Body> {
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}
