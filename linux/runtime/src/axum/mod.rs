//! axum on this runtime. Feature `axum`.
//!
//! | item | purpose |
//! |---|---|
//! | [`NameRoutes`] | a layer that names requests by method and route |

mod name_routes;

pub use name_routes::{NameRoutes, NameRoutesService};
