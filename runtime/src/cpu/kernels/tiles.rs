//! Results cut into tiles, which threads compute each on its own.

use crate::data::emptied;
use crate::kernel::Result;
use crate::room::Room;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Rows of a result from a column on, to be written.
pub(super) struct Tile<'t, 'a, T> {
    /// Which matrix.
    pub(super) matrix: usize,
    /// The first of the rows.
    pub(super) row: usize,
    /// The columns.
    pub(super) columns: Range<usize>,
    /// The columns of each row.
    pub(super) rows: &'t mut [&'a mut [T]],
}

/// The rows of all tiles of a result, one tile behind the other. The memory of the list stays with the kernel
/// from run to run; its content does not.
pub(super) struct TileRows<T: 'static>(Mutex<Vec<&'static mut [T]>>);

impl<T> Default for TileRows<T> {
    fn default() -> Self {
        TileRows(Mutex::default())
    }
}

impl<T: Send> TileRows<T> {
    /// Cuts matrices of `rows` times `columns`, one after the other, into tiles of at most `tile` rows and columns, and
    /// hands `work` all of them.
    ///
    /// # Errors
    /// That of `work`, or if there is no room for the list.
    pub(super) fn cut<'a>(
        &self,
        to: &'a mut [T],
        sizes: (usize, usize),
        tile: (usize, usize),
        room: Room,
        work: impl FnOnce(&mut (dyn Iterator<Item = Tile<'_, 'a, T>> + Send)) -> Result<()>,
    ) -> Result<()> {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut list = emptied(kept);
        let matrices = to.len().checked_div(sizes.0.saturating_mul(sizes.1)).unwrap_or(0);
        list_rows(&mut list, to, sizes, tile, room)?;
        let mut rest = &mut list[..];
        let mut tiles = tiles(matrices, sizes, tile).map_while(|(matrix, row, n, columns)| {
            let (rows, behind) = std::mem::take(&mut rest).split_at_mut_checked(n)?;
            rest = behind;
            (n > 0 && !rows.is_empty()).then_some(Tile { matrix, row, columns, rows })
        });
        let done = work(&mut tiles);
        drop(tiles);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = emptied(list);
        done
    }
}

/// The tiles of so many matrices: which matrix, the first row, the number of rows, the columns.
fn tiles(
    matrices: usize,
    (rows, columns): (usize, usize),
    tile: (usize, usize),
) -> impl Iterator<Item = (usize, usize, usize, Range<usize>)> {
    (0..matrices).flat_map(move |matrix| {
        (0..rows).step_by(tile.0).flat_map(move |row| {
            let n = tile.0.min(rows - row);
            let of = move |column| (matrix, row, n, column..columns.min(column + tile.1));
            (0..columns).step_by(tile.1).map(of)
        })
    })
}

/// Lists the rows of each tile.
fn list_rows<'a, T>(
    list: &mut Vec<&'a mut [T]>,
    to: &'a mut [T],
    (rows, columns): (usize, usize),
    tile: (usize, usize),
    room: Room,
) -> Result<()> {
    let matrix = rows.saturating_mul(columns);
    if matrix == 0 || to.is_empty() {
        return Ok(());
    }
    let across = columns.div_ceil(tile.1);
    let n = rows.saturating_mul(across).saturating_mul(to.len() / matrix);
    room.reserve(list, n)?;
    for block in to.chunks_mut(matrix).flat_map(|matrix| matrix.chunks_mut(tile.0 * columns)) {
        let (first, n) = (list.len(), block.len() / columns);
        list.resize_with(first + n * across, Default::default);
        for (i, row) in block.chunks_mut(columns).enumerate() {
            for (j, part) in row.chunks_mut(tile.1).enumerate() {
                list[first + j * n + i] = part;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_all_of_a_result() {
        let rows = TileRows::default();
        for _ in 0..2 {
            let mut to = [0; 2 * 3 * 5];
            let cut = rows.cut(&mut to, (3, 5), (2, 2), Room::of(1 << 12), |tiles| {
                for tile in tiles {
                    for (i, row) in tile.rows.iter_mut().enumerate() {
                        for (j, x) in row.iter_mut().enumerate() {
                            *x += tile.matrix * 15 + (tile.row + i) * 5 + tile.columns.start + j;
                        }
                    }
                }
                Ok(())
            });
            cut.unwrap();
            assert!(to.iter().enumerate().all(|(i, &x)| i == x));
        }
        let nothing = |tiles: &mut (dyn Iterator<Item = Tile<'_, '_, usize>> + Send)| {
            assert!(tiles.next().is_none());
            Ok(())
        };
        rows.cut(&mut [], (3, 5), (2, 2), Room::of(1 << 12), nothing).unwrap();
        rows.cut(&mut [], (0, 5), (2, 2), Room::of(1 << 12), nothing).unwrap();
    }
}
