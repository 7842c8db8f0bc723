//! Answers of a server without a service of its own: endpoints and files.

use std::fmt::Write;

use http::request::Parts;
use http::{Response, StatusCode};

use crate::config::Endpoint;
use crate::files;
use crate::files::Looking;
use crate::operator::metrics;
use crate::request::body::Body;
use crate::request::reply;
use crate::server::shared::{Live, Shared};

/// Largest size of the matrices: 2 · 512³ operations, some 0.2 s.
const LARGEST: usize = 512;

/// Returns the endpoint that a path names.
pub(crate) fn endpoint_of(live: &Live, path: &str) -> Option<Endpoint> {
    let endpoints = live.config.endpoints.iter().copied();
    endpoints
        .into_iter()
        .find(|endpoint| endpoint.path() == path)
}

/// Answers the endpoints that need no waiting.
pub(crate) fn at_once(shared: &Shared, endpoint: Endpoint) -> Option<Response<Body>> {
    match endpoint {
        Endpoint::Plaintext => Some(reply::text(StatusCode::OK, "Hello, World!")),
        Endpoint::Healthz if shared.is_leaving() => {
            Some(reply::text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"))
        }
        Endpoint::Healthz => Some(reply::text(StatusCode::OK, "ok\n")),
        Endpoint::Metrics => Some(reply::typed(
            StatusCode::OK,
            upshift_trace::prometheus::CONTENT_TYPE,
            metrics::render(shared),
        )),
        Endpoint::Matrix => None,
    }
}

/// Answers all other requests. `since` is the time at which the request had arrived.
pub(crate) async fn respond(
    shared: &Shared,
    live: &Live,
    site: usize,
    parts: &Parts,
    since: u64,
) -> Response<Body> {
    if endpoint_of(live, parts.uri.path()) == Some(Endpoint::Matrix) {
        return matrix(parts.uri.query().unwrap_or_default()).await;
    }
    let site = live.sites.get(site);
    let looking = Looking {
        root: &site.root,
        recent_files: &shared.recent_files,
        since,
    };
    let Parts {
        method,
        uri,
        headers,
        ..
    } = parts;
    let response = files::respond(looking, &site.files, method, uri, headers);
    site.pages.dress(response.await)
}

/// Answers with the product of two matrices of size `n`; yields after every row.
async fn matrix(query: &str) -> Response<Body> {
    let n = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("n="))
        .map_or(Some(64), |n| n.parse().ok());
    let Some(n) = n.filter(|n| (1..=LARGEST).contains(n)) else {
        return reply::text(
            StatusCode::BAD_REQUEST,
            "n must be a number from 1 to 512\n",
        );
    };
    let cell = |row: usize, column: usize| ((row * 31 + column * 17) % 10) as f64;
    let a: Vec<f64> = (0..n * n).map(|at| cell(at / n, at % n)).collect();
    let b: Vec<f64> = (0..n * n).map(|at| cell(at % n, at / n)).collect();
    let mut row = vec![0.0; n];
    let mut trace = 0.0;
    for i in 0..n {
        multiply_row(&a[i * n..][..n], &b, &mut row);
        trace += row[i];
        upshift::yield_if_needed().await;
    }
    let mut json = String::new();
    // Writing to a string cannot fail.
    let _ = write!(json, "{{\"n\":{n},\"trace\":{trace}}}");
    reply::typed(StatusCode::OK, "application/json", json)
}

/// Computes one row of the product with `b`. A separate function, because in the coroutine the
/// vectors would be reloaded from its state again and again.
#[inline(never)]
fn multiply_row(a: &[f64], b: &[f64], row: &mut [f64]) {
    row.fill(0.0);
    for (left, others) in a.iter().zip(b.chunks_exact(row.len())) {
        for (sum, right) in row.iter_mut().zip(others) {
            *sum += left * right;
        }
    }
}
