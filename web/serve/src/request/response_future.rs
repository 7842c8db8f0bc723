//! The future of a response, which hyper polls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Method, Response, Version};
use http_body::Body as _;

use crate::request::active::ActiveRequest;
use crate::request::body::{Body, BoxError};
use crate::server::shared::HandlerFuture;

pub(super) enum Answer {
    Ready(Option<Response<Body>>),
    Handler(HandlerFuture),
}

pub(crate) struct ResponseFuture {
    request: Option<Box<ActiveRequest>>,
    answer: Answer,
    headers: Option<Arc<HeaderMap>>,
}

impl ResponseFuture {
    pub(super) fn new(
        request: Box<ActiveRequest>,
        answer: Answer,
        headers: Option<Arc<HeaderMap>>,
    ) -> ResponseFuture {
        ResponseFuture {
            headers,
            request: Some(request),
            answer,
        }
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<Box<ActiveRequest>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(request) = &mut this.request {
            ready!(request.poll_begin(cx));
        }
        let response = match &mut this.answer {
            Answer::Ready(response) => response.take(),
            Answer::Handler(future) => Some(ready!(future.as_mut().poll(cx))),
        };
        let (Some(mut response), Some(mut request)) = (response, this.request.take()) else {
            return Poll::Ready(Err("a response was polled after its completion".into()));
        };
        if request.entry.facts.method == Method::HEAD {
            strip_body(&mut response);
        }
        for (name, value) in this.headers.iter().flat_map(|fields| fields.iter()) {
            response
                .headers_mut()
                .entry(name)
                .or_insert_with(|| value.clone());
        }
        request.apply_response(&response);
        let queue = request
            .conn
            .send_file_queue()
            .filter(|_| !request.is_http2());
        response.body_mut().prepare(queue);
        let version = request.version;
        if version < Version::HTTP_2 && request.conn.shared.is_leaving()
            || version == Version::HTTP_10 && is_close_delimited(&response)
        {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        if version == Version::HTTP_10 && has_close(&response) {
            // hyper would add `keep-alive` to a response of HTTP/1.1.
            *response.version_mut() = Version::HTTP_10;
        }
        request.set_offering(true);
        Poll::Ready(Ok(response.map(|body| {
            request.body = body;
            request
        })))
    }
}

/// Returns whether the end of the connection ends the body (RFC 9112, section 6.3), as in HTTP/1.0,
/// which has no chunks.
fn is_close_delimited(response: &Response<Body>) -> bool {
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    !has_length && response.body().size_hint().exact().is_none()
}

fn has_close(response: &Response<Body>) -> bool {
    let field = response.headers().get(CONNECTION);
    field.is_some_and(|field| field.as_bytes().eq_ignore_ascii_case(b"close"))
}

/// Replaces the body of a response to HEAD by its length. hyper does this only in HTTP/1.
fn strip_body(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length != 0) {
        let fields = response.headers_mut();
        fields
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    *response.body_mut() = Body::empty();
}
