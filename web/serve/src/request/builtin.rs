//! Creates the responses for built-in endpoints and files.

use std::fmt::Write;

use http::request::Parts;
use http::{Response, StatusCode};

use crate::config::Endpoint;
use crate::files;
use crate::files::Lookup;
use crate::operator::metrics;
use crate::request::body::Body;
use crate::request::reply;
use crate::server::shared::{Settings, Shared};

/// Largest number of rows of a matrix that clients can ask for.
const MAX_MATRIX_SIZE: usize = 512;

pub(crate) fn endpoint_of(settings: &Settings, path: &str) -> Option<Endpoint> {
    let endpoints = settings.config.endpoints.iter().copied();
    endpoints
        .into_iter()
        .find(|endpoint| endpoint.path() == path)
}

/// Returns the response of an endpoint, if it is available without waiting.
pub(crate) fn respond_now(shared: &Shared, endpoint: Endpoint) -> Option<Response<Body>> {
    match endpoint {
        Endpoint::Plaintext => Some(reply::text(StatusCode::OK, "Hello, World!")),
        Endpoint::Healthz if shared.is_leaving() => {
            Some(reply::text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"))
        }
        Endpoint::Healthz => Some(reply::text(StatusCode::OK, "ok\n")),
        Endpoint::Metrics => Some(reply::with_type(
            StatusCode::OK,
            upshift_trace::prometheus::CONTENT_TYPE,
            metrics::render(shared),
        )),
        Endpoint::Matrix => None,
    }
}

/// Answers a request for a file or a computation. `since` is the arrival of the request.
pub(crate) async fn respond(
    shared: &Shared,
    settings: &Settings,
    site: usize,
    parts: &Parts,
    since: u64,
) -> Response<Body> {
    if endpoint_of(settings, parts.uri.path()) == Some(Endpoint::Matrix) {
        return matrix(parts.uri.query().unwrap_or_default()).await;
    }
    let site = settings.sites.get(site);
    let lookup = Lookup {
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
    let response = files::respond(lookup, &site.files, method, uri, headers);
    site.pages.apply(response.await)
}

async fn matrix(query: &str) -> Response<Body> {
    let n = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("n="))
        .map_or(Some(64), |n| n.parse().ok());
    let Some(n) = n.filter(|n| (1..=MAX_MATRIX_SIZE).contains(n)) else {
        return reply::text(
            StatusCode::BAD_REQUEST,
            "n must be a number from 1 to 512\n",
        );
    };
    let cell = |row: usize, column: usize| ((row * 31 + column * 17) % 10) as f64;
    let a: Vec<f64> = (0..n * n).map(|index| cell(index / n, index % n)).collect();
    let b: Vec<f64> = (0..n * n).map(|index| cell(index % n, index / n)).collect();
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
    reply::with_type(StatusCode::OK, "application/json", json)
}

/// Computes one row of the product with `b`. This is a separate function, since the compiler
/// reloads values that are stored in the state of a coroutine at each use.
#[inline(never)]
fn multiply_row(a: &[f64], b: &[f64], row: &mut [f64]) {
    row.fill(0.0);
    for (left, b_row) in a.iter().zip(b.chunks_exact(row.len())) {
        for (sum, right) in row.iter_mut().zip(b_row) {
            *sum += left * right;
        }
    }
}
