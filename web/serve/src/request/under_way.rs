//! A request that is being answered: what hyper polls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Method, Response, Version};
use http_body::Body as _;
use upshift::hyper::{LevelBody, LevelFuture};

use crate::request::body::{Body, BoxError};
use crate::request::counted::Counted;
use crate::request::exchange::Exchange;
use crate::request::in_flight::Entry;
use crate::server::shared::{Answering, Entered};

/// A request under way: the coroutine that polls it first is the one to be moved, also while it
/// queues at its level.
pub(crate) struct UnderWay {
    listed: Option<Arc<Entry>>,
    inner: LevelFuture<Exchanging>,
}

impl UnderWay {
    /// `receives`: the request is answered where it was received.
    pub(crate) fn new(exchange: Exchange, answer: Answer, receives: bool) -> UnderWay {
        let listed = exchange.entry.clone();
        let (level, returns) = (listed.level(), exchange.version < Version::HTTP_2);
        let exchanging = Exchanging {
            exchange: Some(exchange),
            answer,
            begun: false,
        };
        UnderWay {
            listed: Some(listed),
            inner: if receives {
                LevelFuture::of_receiving(exchanging, returns)
            } else {
                LevelFuture::new(exchanging, level, returns)
            },
        }
    }
}

impl Future for UnderWay {
    type Output = Result<Response<LevelBody<Counted>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(listed) = self.listed.take() {
            listed.begun();
        }
        Pin::new(&mut self.inner).poll(cx)
    }
}

/// How a request is answered.
pub(crate) enum Answer {
    Ready(Option<Response<Body>>),
    Later(Answering),
}

/// A request being answered.
pub(crate) struct Exchanging {
    exchange: Option<Exchange>,
    answer: Answer,
    begun: bool,
}

impl Future for Exchanging {
    type Output = Result<Response<Counted>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.begun {
            this.begun = true;
            if let Some(exchange) = &mut this.exchange {
                exchange.begin();
            }
        }
        let response = match &mut this.answer {
            Answer::Ready(response) => response.take(),
            Answer::Later(answering) => Some(ready!(answering.as_mut().poll(cx))),
        };
        let (Some(mut response), Some(mut exchange)) = (response, this.exchange.take()) else {
            return Poll::Ready(Err("a response was polled after its completion".into()));
        };
        if exchange.entry.facts.method == Method::HEAD {
            only_head(&mut response);
        }
        exchange.status = response.status().as_u16();
        exchange.follow(&response);
        let Entered { shared, conn, .. } = &*exchange.entered;
        if exchange.version < Version::HTTP_2 && conn.tls.get().is_none() {
            response.body_mut().go_past(conn);
        }
        response.body_mut().read_piece();
        if exchange.version < Version::HTTP_2 && shared.is_leaving()
            || exchange.version == Version::HTTP_10 && ends_with_connection(&response)
        {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        if exchange.version == Version::HTTP_10 && closes(&response) {
            // To a response of HTTP/1.1 the library would add `keep-alive`.
            *response.version_mut() = Version::HTTP_10;
        }
        Poll::Ready(Ok(response.map(|inner| Counted::new(inner, exchange))))
    }
}

/// Is the end of the connection that of the body, in HTTP/1.0, which knows no chunks?
fn ends_with_connection(response: &Response<Body>) -> bool {
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    !has_length && response.body().size_hint().exact().is_none()
}

fn closes(response: &Response<Body>) -> bool {
    let field = response.headers().get(CONNECTION);
    field.is_some_and(|field| field.as_bytes().eq_ignore_ascii_case(b"close"))
}

/// Takes the body away, whose length stays. Of HTTP/2 hyper leaves that to us.
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
