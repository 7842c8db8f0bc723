//! [`NameRoutes`], which names the work of a request by its method and the route that axum matched.
//!
//! axum shows the route ([`MatchedPath`]) only inside its router, so `NameRoutes` is a layer.
//! A request costs one allocation, for the name, and the cost of [`named`](crate::named).

use std::task::{Context, Poll};

use ::axum::extract::MatchedPath;
use ::hyper::Request;
use tower_layer::Layer;
use tower_service::Service;

use crate::observe::{Named, named};

const NO_ROUTE: &str = "(no route)";

/// A layer that names each request by its method and route, such as `GET /users/{id}`.
///
/// Stalls, panics, timelines, `upshift top` and [`Metrics::named`](crate::metrics::Metrics::named)
/// show the name. Add the layer last, by `Router::layer` (not `tower::ServiceBuilder` around the
/// router, where no route is known yet), so that the other layers are a part of the request. The
/// name covers the request up to the head of its response, not the streaming of a body.
///
/// ```
/// use axum::{Router, routing::get};
/// use upshift::axum::NameRoutes;
///
/// let app: Router = Router::new()
///     .route("/users/{id}", get(|| async { "a user" }))
///     .layer(NameRoutes);
/// # drop(app);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NameRoutes;

impl<S> Layer<S> for NameRoutes {
    type Service = NameRoutesService<S>;

    fn layer(&self, inner: S) -> NameRoutesService<S> {
        NameRoutesService { inner }
    }
}

/// The service of [`NameRoutes`].
#[derive(Clone, Debug)]
pub struct NameRoutesService<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for NameRoutesService<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Named<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Named<S::Future> {
        let matched_path = request.extensions().get::<MatchedPath>();
        let route = matched_path.map_or(NO_ROUTE, MatchedPath::as_str);
        let name = format!("{} {route}", request.method());
        named(name, self.inner.call(request))
    }
}
