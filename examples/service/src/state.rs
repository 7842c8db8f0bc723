//! Defines the state that all handlers share.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::ConnectionManager;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::broadcast;
use upshift::JoinHandle;

use crate::config::Config;
use crate::orders::Order;

#[derive(Clone)]
pub struct Shop {
    pub database: PgPool,
    pub redis: ConnectionManager,
    pub http: reqwest::Client,
    pub partner: Arc<str>,
    pub orders: broadcast::Sender<Order>,
    pub job: Arc<Mutex<Option<JoinHandle<()>>>>,
}

pub async fn connect(config: &Config) -> Result<Shop, Box<dyn std::error::Error>> {
    let database = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(5))
        .connect(&config.database)
        .await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (id BIGSERIAL PRIMARY KEY, item TEXT NOT NULL, quantity INT NOT NULL)",
    )
    .execute(&database)
    .await?;
    let redis = redis::Client::open(config.redis.as_str())?;
    let mut http = reqwest::Client::builder().timeout(Duration::from_secs(5));
    if let Some(path) = &config.partner_ca {
        http = http.add_root_certificate(reqwest::Certificate::from_pem(&fs::read(path)?)?);
    }
    Ok(Shop {
        database,
        redis: redis.get_connection_manager().await?,
        http: http.build()?,
        partner: config.partner.as_str().into(),
        orders: broadcast::channel(64).0,
        job: Arc::default(),
    })
}
