//! Requests prices from the partner.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::state::Shop;

#[derive(Deserialize, Serialize)]
pub struct Quote {
    pub item: String,
    pub cents: u64,
}

pub async fn show(
    State(shop): State<Shop>,
    Path(item): Path<String>,
) -> Result<Json<Quote>, Error> {
    Ok(Json(fetch(&shop, &item).await?))
}

pub async fn fetch(shop: &Shop, item: &str) -> Result<Quote, reqwest::Error> {
    let url = format!("{}prices/{item}", shop.partner);
    let answer = shop.http.get(url).send().await?.error_for_status()?;
    answer.json().await
}
