//! Creates short responses.

use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::request::body::Body;

pub(crate) fn with_type(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Response<Body> {
    let body = body.into();
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn redirect(url: &str) -> Response<Body> {
    let mut response = text(StatusCode::PERMANENT_REDIRECT, "");
    if let Ok(location) = HeaderValue::from_str(url) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

pub(crate) fn method_not_allowed(body: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, body);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

pub(crate) fn retry_later(status: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = text(status, body);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
