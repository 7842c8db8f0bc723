//! Creates DataFusion's table of orders, and queries it.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::prelude::{SessionConfig, SessionContext, col};

/// Number of partitions of the table and of the plan. DataFusion spawns tasks for each partition.
const PARTITIONS: usize = 2;
/// Number of batches of a partition.
const BATCHES: i64 = 16;
/// Number of rows of a batch.
const ROWS: i64 = 8192;

pub(crate) struct Engine {
    session: SessionContext,
}

impl Engine {
    pub(crate) fn new() -> Result<Engine> {
        let config = SessionConfig::new().with_target_partitions(PARTITIONS);
        let session = SessionContext::new_with_config(config);
        let schema = Arc::new(Schema::new(vec![
            Field::new("customer", DataType::Int64, false),
            Field::new("amount", DataType::Int64, false),
        ]));
        let batch = |number: i64| {
            let rows = || number * ROWS..(number + 1) * ROWS;
            // Spread over 50,000 customers.
            let customers = Int64Array::from_iter_values(rows().map(|row| row * 7919 % 50_000));
            let amounts = Int64Array::from_iter_values(rows().map(|row| row % 997));
            let columns: [ArrayRef; 2] = [Arc::new(customers), Arc::new(amounts)];
            RecordBatch::try_new(schema.clone(), columns.to_vec())
        };
        let partition = |number: i64| {
            let batches = (number * BATCHES..(number + 1) * BATCHES).map(batch);
            batches.collect::<std::result::Result<Vec<RecordBatch>, ArrowError>>()
        };
        let mut partitions = Vec::new();
        for number in 0..PARTITIONS as i64 {
            partitions.push(partition(number)?);
        }
        let orders = MemTable::try_new(schema.clone(), partitions)?;
        session.register_table("orders", Arc::new(orders))?;
        Ok(Engine { session })
    }

    /// Returns the ten customers with the largest sums.
    pub(crate) async fn report(&self) -> Result<String> {
        let total = sum(col("amount")).alias("total");
        let best = self.session.table("orders").await?;
        let best = best.aggregate(vec![col("customer")], vec![total])?;
        let order = vec![
            col("total").sort(false, false),
            col("customer").sort(true, false),
        ];
        let batches = best.sort(order)?.limit(0, Some(10))?.collect().await?;
        let mut report = String::new();
        for batch in batches {
            for row in 0..batch.num_rows() {
                let value = |column: usize| {
                    let values = batch.column(column).as_any();
                    let values = values.downcast_ref::<Int64Array>();
                    values.expect("both columns are Int64").value(row)
                };
                report += &format!("{} {}\n", value(0), value(1));
            }
        }
        Ok(report)
    }
}
