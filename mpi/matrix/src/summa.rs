//! Multiplies matrices on a grid of ranks by the algorithm SUMMA (van de Geijn and Watts, 1997).
//! Each rank has a block of each matrix. The ranks that have a panel of the inner dimension
//! broadcast it along their rows and columns, and each rank multiplies the panels that it received.
//!
//! The broadcasts of a panel run while the previous panel is multiplied. A rank needs memory for
//! three blocks and two panels.

use std::ops::Range;

use upshift_mpi::{Comm, Operation, Result};

use crate::grid::{Grid, cut, owner, part};
use crate::kernel::multiply;

/// Width of a panel. It is wide enough that a message is worth its cost, and narrow enough that the
/// first panel arrives early.
const PANEL: usize = 64;

/// The communicators of a lane. A lane computes the products of one level of requests, one product
/// at a time.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) row: Comm,
    pub(crate) column: Comm,
}

/// Returns the panels of the inner dimension. Each panel is within one part of the rows and one
/// part of the columns.
fn panels(n: usize, grid: Grid) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (0..grid.rows)
        .map(|k| part(n, grid.rows, k).start)
        .chain((0..grid.columns).map(|k| part(n, grid.columns, k).start))
        .chain((0..n).step_by(PANEL))
        .chain([n])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The broadcasts of a panel.
struct Panel {
    left: Operation<Vec<u64>>,
    right: Operation<Vec<u64>>,
    width: usize,
}

/// Returns this rank's block of the square of a matrix of order `n`, of which it has `block`.
pub(crate) async fn square(
    lane: &Lane,
    grid: Grid,
    rank: usize,
    n: usize,
    block: &[u64],
) -> Result<Vec<u64>> {
    let (rows, columns) = grid.block(n, rank);
    let (my_row, my_column) = grid.position(rank);
    let begin = |panel: Range<usize>| {
        let width = panel.len();
        let left_owner = owner(n, grid.columns, panel.start);
        let left = if left_owner == my_column {
            let inside = panel.start - columns.start..panel.end - columns.start;
            cut(block, columns.len(), 0..rows.len(), inside)
        } else {
            vec![0; rows.len() * width]
        };
        let right_owner = owner(n, grid.rows, panel.start);
        let right = if right_owner == my_row {
            let inside = panel.start - rows.start..panel.end - rows.start;
            cut(block, columns.len(), inside, 0..columns.len())
        } else {
            vec![0; width * columns.len()]
        };
        Panel {
            left: lane.row.broadcast(left, left_owner),
            right: lane.column.broadcast(right, right_owner),
            width,
        }
    };
    let mut product = vec![0; rows.len() * columns.len()];
    let mut remaining_panels = panels(n, grid).into_iter();
    let mut next = remaining_panels.next().map(begin);
    while let Some(panel) = next {
        let (left, right) = (panel.left.await?, panel.right.await?);
        next = remaining_panels.next().map(begin);
        multiply(&left, &right, &mut product, panel.width, columns.len()).await;
    }
    Ok(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_has_one_owner_in_each_direction() {
        for n in [1, 5, 63, 64, 65, 200, 301] {
            for ranks in 1..9 {
                let grid = Grid::new(ranks);
                let panels = panels(n, grid);
                assert_eq!(panels.iter().map(ExactSizeIterator::len).sum::<usize>(), n);
                for panel in panels {
                    for parts in [grid.rows, grid.columns] {
                        assert_eq!(owner(n, parts, panel.start), owner(n, parts, panel.end - 1));
                    }
                }
            }
        }
    }
}
