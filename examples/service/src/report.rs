//! Runs the background job, which reads all orders, requests prices from the partner, computes, and
//! stores its report in redis. The job repeats this until it is stopped.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::PoisonError;

use axum::extract::State;
use axum::http::StatusCode;
use futures_util::TryStreamExt;
use serde::Serialize;
use upshift::Level;

use crate::error::Error;
use crate::orders::Order;
use crate::quotes;
use crate::state::Shop;

/// Level of the background job.
const LEVEL: Level = Level::at::<48>();
/// Key of the report in redis.
const KEY: &str = "report";

#[derive(Serialize)]
struct Report {
    round: u64,
    orders: u64,
    cents: u64,
    /// Checksum over everything that was computed.
    checksum: u64,
}

pub async fn start(State(shop): State<Shop>) -> StatusCode {
    let job_shop = shop.clone();
    let job = upshift::spawn(
        async move {
            for round in 0.. {
                if let Err(error) = compute(&job_shop, round).await {
                    tracing::error!(%error, "no report");
                    upshift::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        },
        LEVEL,
    );
    replace_job(&shop, Some(job));
    StatusCode::ACCEPTED
}

pub async fn stop(State(shop): State<Shop>) -> StatusCode {
    replace_job(&shop, None);
    StatusCode::NO_CONTENT
}

pub async fn show(State(shop): State<Shop>) -> Result<String, Error> {
    let mut redis = shop.redis.clone();
    let report: Option<String> = redis::cmd("GET").arg(KEY).query_async(&mut redis).await?;
    report.ok_or(Error::NotFound)
}

/// Stores the current job and cancels the previous one, so that there is one job at a time.
fn replace_job(shop: &Shop, job: Option<upshift::JoinHandle<()>>) {
    let mut current = shop.job.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(previous) = std::mem::replace(&mut *current, job) {
        previous.cancel();
    }
}

async fn compute(shop: &Shop, round: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut rows =
        sqlx::query_as::<_, Order>("SELECT id, item, quantity FROM orders").fetch(&shop.database);
    let mut by_item: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut hasher = DefaultHasher::new();
    while let Some(order) = rows.try_next().await? {
        // Stands in for the computation that a report needs for each order, which takes about 80
        // µs.
        for step in 0..8_000 {
            (order.id, order.quantity, step).hash(&mut hasher);
        }
        // Yields the CPU to the databases, for which an urgent request may wait. Otherwise they
        // would get the CPU only at the kernel's next tick, up to 4 ms later.
        std::thread::yield_now();
        let sum = by_item.entry(order.item).or_default();
        sum.0 += 1;
        sum.1 += u64::try_from(order.quantity)?;
    }
    drop(rows);
    let mut report = Report {
        round,
        orders: 0,
        cents: 0,
        checksum: hasher.finish(),
    };
    for (item, (orders, pieces)) in by_item {
        report.orders += orders;
        report.cents += pieces * quotes::fetch(shop, &item).await?.cents;
    }
    let mut redis = shop.redis.clone();
    let text = serde_json::to_string(&report)?;
    let _: () = redis::cmd("SET")
        .arg(KEY)
        .arg(text)
        .query_async(&mut redis)
        .await?;
    Ok(())
}
