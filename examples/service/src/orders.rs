//! Handles orders. Placing an order is urgent, because a customer waits for the answer.

use axum::Json;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{Path, State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::error::Error;
use crate::state::Shop;

#[derive(Clone, Serialize, sqlx::FromRow)]
pub struct Order {
    pub id: i64,
    pub item: String,
    pub quantity: i32,
}

#[derive(Serialize)]
pub struct OrderView {
    #[serde(flatten)]
    order: Order,
    views: i64,
}

#[derive(Deserialize)]
pub struct NewOrder {
    item: String,
    quantity: i32,
}

pub async fn show(State(shop): State<Shop>, Path(id): Path<i64>) -> Result<Json<OrderView>, Error> {
    let mut redis = shop.redis.clone();
    let views = redis::cmd("INCR")
        .arg(format!("views:{id}"))
        .query_async(&mut redis)
        .await?;
    let order = sqlx::query_as("SELECT id, item, quantity FROM orders WHERE id = $1")
        .bind(id)
        .fetch_optional(&shop.database)
        .await?
        .ok_or(Error::NotFound)?;
    Ok(Json(OrderView { order, views }))
}

pub async fn create(
    State(shop): State<Shop>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Error> {
    if new.quantity < 1 {
        return Err(Error::Invalid("the quantity must be at least 1"));
    }
    let order: Order = sqlx::query_as(
        "INSERT INTO orders (item, quantity) VALUES ($1, $2) RETURNING id, item, quantity",
    )
    .bind(new.item)
    .bind(new.quantity)
    .fetch_one(&shop.database)
    .await?;
    // An error means that there is no subscriber.
    let _ = shop.orders.send(order.clone());
    Ok((StatusCode::CREATED, Json(order)))
}

pub async fn health(State(shop): State<Shop>) -> Result<&'static str, Error> {
    sqlx::query("SELECT 1").execute(&shop.database).await?;
    let mut redis = shop.redis.clone();
    let _: String = redis::cmd("PING").query_async(&mut redis).await?;
    Ok("ok")
}

pub async fn events(State(shop): State<Shop>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| forward_events(socket, shop.orders.subscribe()))
}

/// Sends each order to a web socket, and echoes its text messages.
async fn forward_events(mut socket: WebSocket, mut orders: broadcast::Receiver<Order>) {
    loop {
        let message = tokio::select! {
            order = orders.recv() => match order {
                Ok(order) => Message::text(serde_json::json!(order).to_string()),
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            },
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) => Message::Text(text),
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => return,
            },
        };
        if socket.send(message).await.is_err() {
            return;
        }
    }
}
