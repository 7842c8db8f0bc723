//! The future of a response, which the HTTP library polls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Method, Response, Version};
use http_body::Body as _;

use crate::request::body::{Body, BoxError};
use crate::request::under_way::Request;
use crate::server::shared::Answering as Handler;

/// The way in which a request is answered.
pub(super) enum Answer {
    Ready(Option<Response<Body>>),
    Later(Handler),
}

/// A request that is being answered.
pub(crate) struct Answering {
    request: Option<Box<Request>>,
    answer: Answer,
    /// Header fields that the operator adds.
    headers: Option<Arc<HeaderMap>>,
}

impl Answering {
    pub(super) fn new(
        request: Box<Request>,
        answer: Answer,
        headers: Option<Arc<HeaderMap>>,
    ) -> Answering {
        Answering {
            headers,
            request: Some(request),
            answer,
        }
    }
}

impl Future for Answering {
    type Output = Result<Response<Box<Request>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(request) = &mut this.request {
            ready!(request.poll_begin(cx));
        }
        let response = match &mut this.answer {
            Answer::Ready(response) => response.take(),
            Answer::Later(answering) => Some(ready!(answering.as_mut().poll(cx))),
        };
        let (Some(mut response), Some(mut request)) = (response, this.request.take()) else {
            return Poll::Ready(Err("a response was polled after its completion".into()));
        };
        if request.entry.facts.method == Method::HEAD {
            only_head(&mut response);
        }
        for (name, value) in this.headers.iter().flat_map(|fields| fields.iter()) {
            response
                .headers_mut()
                .entry(name)
                .or_insert_with(|| value.clone());
        }
        request.follow(&response);
        let direct = request.conn.direct().filter(|_| !request.is_two());
        response.body_mut().prepare(direct);
        let version = request.version;
        if version < Version::HTTP_2 && request.conn.shared.is_leaving()
            || version == Version::HTTP_10 && ends_with_connection(&response)
        {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        if version == Version::HTTP_10 && closes(&response) {
            // The library would add `keep-alive` to a response of HTTP/1.1.
            *response.version_mut() = Version::HTTP_10;
        }
        request.offer(true);
        Poll::Ready(Ok(response.map(|body| {
            request.body = body;
            request
        })))
    }
}

/// Tells whether the end of the connection is the end of the body, as in HTTP/1.0, which knows no
/// chunks.
fn ends_with_connection(response: &Response<Body>) -> bool {
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    !has_length && response.body().size_hint().exact().is_none()
}

fn closes(response: &Response<Body>) -> bool {
    let field = response.headers().get(CONNECTION);
    field.is_some_and(|field| field.as_bytes().eq_ignore_ascii_case(b"close"))
}

/// Removes the body but not its length. In HTTP/2 hyper leaves that to the service.
fn only_head(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length != 0) {
        let fields = response.headers_mut();
        fields
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    *response.body_mut() = Body::empty();
}
