//! Defines the error type of the handlers, and converts it to responses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

pub enum Error {
    NotFound,
    Invalid(&'static str),
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Error {
        Error::Failed(Box::new(error))
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Error::NotFound => (StatusCode::NOT_FOUND, "no such thing"),
            Error::Invalid(why) => (StatusCode::UNPROCESSABLE_ENTITY, why),
            Error::Failed(error) => {
                tracing::error!(%error, "a request failed");
                (
                    StatusCode::BAD_GATEWAY,
                    "a server that this service needs has failed",
                )
            }
        };
        (status, Json(serde_json::json!({ "error": why }))).into_response()
    }
}
