//! Divides the work among the ranks. Every rank runs this module.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use upshift::sync::{Mutex, Notify};
use upshift::{Level, current_level};
use upshift_mpi::{Comm, Error, Request, Result, World};

use crate::grid::{Grid, cut, paste};
use crate::kernel::multiply;
use crate::summa::{self, Lane};
use crate::wire;

/// Minimum order of a product that is spread over the ranks.
pub const SPREAD: usize = 128;

// The first byte of a request between ranks.
const SMALL: u8 = 0;
const LARGE: u8 = 1;
const END: u8 = 2;

/// Tag bit of the blocks of the product; the other bits contain the level.
const PRODUCT_BIT: u16 = 64;

/// The number of levels that requests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// Eight levels.
    Eight,
    /// A single level for all requests, for comparison.
    One,
}

impl Levels {
    /// Returns the runtime's level for a level of requests.
    #[must_use]
    pub fn level(self, wire_level: u8) -> Level {
        let level = match self {
            Levels::Eight => wire_level.min(wire::LEVELS - 1) * 8,
            Levels::One => 32,
        };
        Level::new(level).unwrap_or(Level::DEFAULT)
    }
}

/// Computes products on the ranks of a job. All ranks create this value collectively.
#[derive(Clone)]
pub struct Matrices {
    inner: Arc<Inner>,
}

struct Inner {
    world: World,
    grid: Grid,
    blocks: Comm,
    /// One lane, that is, a set of communicators, for each level of the requests. A lane computes
    /// one product that is spread over the ranks at a time, in the order of arrival.
    lanes: Vec<Mutex<Lane>>,
    /// Number of the next small product, which determines its rank.
    next: AtomicUsize,
    ended: Notify,
    levels: Levels,
    /// Minimum order of a product that is spread over the ranks.
    spread: usize,
}

impl Matrices {
    /// Creates the communicators and starts to serve requests. All ranks must call this function.
    ///
    /// # Errors
    /// The errors of the job.
    pub async fn new(world: &World, levels: Levels, spread: usize) -> Result<Matrices> {
        let comm = world.comm();
        let grid = Grid::new(world.size());
        let (row, column) = grid.position(world.rank());
        let missing = || Error::System("a split gave no communicator".into());
        let row = comm.split(Some(row as u32), column).await?;
        let row = row.ok_or_else(missing)?;
        let (row_number, _) = grid.position(world.rank());
        let column = comm.split(Some(column as u32), row_number).await?;
        let column = column.ok_or_else(missing)?;
        let mut lanes = Vec::new();
        for _ in 0..wire::LEVELS {
            lanes.push(Mutex::new(Lane {
                row: row.dup().await?,
                column: column.dup().await?,
            }));
        }
        let matrices = Matrices {
            inner: Arc::new(Inner {
                world: world.clone(),
                grid,
                blocks: comm.dup().await?,
                lanes,
                next: AtomicUsize::new(0),
                ended: Notify::new(),
                levels,
                spread: spread.max(world.size()),
            }),
        };
        let server = matrices.clone();
        world.serve(move |request| {
            let matrices = server.clone();
            async move { matrices.answer(request).await }
        });
        Ok(matrices)
    }

    /// Returns the job's ranks.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.inner.world
    }

    pub(crate) fn levels(&self) -> Levels {
        self.inner.levels
    }

    async fn answer(&self, request: Request) -> Vec<u8> {
        match request.body.split_first() {
            Some((&SMALL, payload)) => square_locally(payload).await,
            Some((&LARGE, &[lane, ref order @ ..])) => {
                let n = order.try_into().map_or(0, u32::from_le_bytes) as usize;
                // An error of the job also occurs at rank 0, which reports it.
                let _ = self.take_part(lane, n).await;
                Vec::new()
            }
            _ => {
                self.inner.ended.notify_one();
                Vec::new()
            }
        }
    }

    /// Takes part in a product on a rank other than 0. The rank receives its block, multiplies, and
    /// sends its part of the product back.
    async fn take_part(&self, lane_index: u8, n: usize) -> Result<()> {
        let Inner {
            world,
            grid,
            blocks,
            lanes,
            ..
        } = &*self.inner;
        let lane = lanes
            .get(usize::from(lane_index))
            .ok_or_else(|| Error::System(format!("there is no lane {lane_index}")))?;
        // This does not wait long, since rank 0 starts the next product of the lane only after it
        // has received all parts of this one.
        let lane = lane.lock().await;
        let (rows, columns) = grid.block(n, world.rank());
        let empty = vec![0u64; rows.len() * columns.len()];
        let block = blocks.irecv(empty, 0, u16::from(lane_index)).await?.data;
        let part = summa::square(&lane, *grid, world.rank(), n, &block).await?;
        blocks
            .isend(part, 0, u16::from(lane_index) | PRODUCT_BIT)
            .await?;
        Ok(())
    }

    /// Returns the square of a matrix of order `n`. The computation runs at the level of the
    /// calling coroutine, in the lane of the request's level.
    ///
    /// # Errors
    /// The errors of the job.
    pub async fn square(&self, wire_level: u8, payload: &[u8], n: usize) -> Result<Vec<u8>> {
        if n < self.inner.spread || self.inner.world.size() == 1 {
            let ranks = self.inner.world.size();
            let rank = self.inner.next.fetch_add(1, Relaxed) % ranks;
            if rank == self.inner.world.rank() {
                return Ok(square_locally(payload).await);
            }
            let mut body = Vec::with_capacity(payload.len() + 16);
            body.push(SMALL);
            body.extend_from_slice(payload);
            return self.inner.world.call(rank, body).await;
        }
        self.spread(wire_level.min(wire::LEVELS - 1), payload, n)
            .await
    }

    async fn spread(&self, lane_index: u8, payload: &[u8], n: usize) -> Result<Vec<u8>> {
        let Inner {
            world,
            grid,
            blocks,
            lanes,
            ..
        } = &*self.inner;
        let lane = lanes[usize::from(lane_index)].lock().await;
        let level = current_level().unwrap_or_default();
        let matrix: Vec<u64> = bytemuck::allocation::pod_collect_to_vec(payload);
        let (mut sends, mut parts) = (Vec::new(), Vec::new());
        for rank in 1..world.size() {
            let (rows, columns) = grid.block(n, rank);
            let mut start = vec![LARGE, lane_index];
            start.extend_from_slice(&(n as u32).to_le_bytes());
            // The send is not awaited, since it completes in the background.
            drop(world.send_at(rank, level, start));
            let block = cut(&matrix, n, rows.clone(), columns.clone());
            let empty = vec![0u64; block.len()];
            sends.push(blocks.isend(block, rank, u16::from(lane_index)));
            parts.push((
                rank,
                blocks.irecv(empty, rank, u16::from(lane_index) | PRODUCT_BIT),
            ));
        }
        let (rows, columns) = grid.block(n, 0);
        let block = cut(&matrix, n, rows.clone(), columns.clone());
        let own_part = summa::square(&lane, *grid, 0, n, &block).await?;
        let mut product = matrix;
        paste(&mut product, n, rows, columns, &own_part);
        for (rank, part) in parts {
            let (rows, columns) = grid.block(n, rank);
            paste(&mut product, n, rows, columns, &part.await?.data);
        }
        for send in sends {
            send.await?;
        }
        Ok(bytemuck::cast_slice(&product).to_vec())
    }

    /// Ends the service of all ranks. Must be called on rank 0.
    ///
    /// # Errors
    /// The errors of the job.
    pub async fn end(&self) -> Result<()> {
        for rank in 0..self.inner.world.size() {
            self.inner
                .world
                .send_at(rank, Level::at::<63>(), vec![END])
                .await?;
        }
        Ok(())
    }

    /// Waits until [`end`](Self::end) is called on rank 0.
    pub async fn ended(&self) {
        self.inner.ended.notified().await;
    }
}

/// Returns the square of a matrix, computed on this rank alone.
async fn square_locally(payload: &[u8]) -> Vec<u8> {
    let matrix: Vec<u64> = bytemuck::allocation::pod_collect_to_vec(payload);
    let n = matrix.len().isqrt();
    let mut product = vec![0; matrix.len()];
    multiply(&matrix, &matrix, &mut product, n, n).await;
    bytemuck::cast_slice(&product).to_vec()
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "numbers are copied from and to the protocol, which is little-endian"
);
