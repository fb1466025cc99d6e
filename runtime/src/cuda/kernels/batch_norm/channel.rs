//! The channels of the elements that a thread of a batch normalization computes.

use crate::cuda::launch::{THREADS, blocks_for};

/// The blocks of long loops: a few times as many as run at once on a device with many multiprocessors. Their threads read the
/// numbers of their channels once.
const MOST_BLOCKS: usize = 1 << 11;

/// The blocks for so many vectors of neighbouring channels. A thread has the same channels in all steps where that takes few
/// blocks.
pub(super) fn blocks_of_channels(vectors: usize, lanes: usize, channels: usize) -> usize {
    let (mut every, mut rest) = (channels.max(1), THREADS as usize * lanes);
    while rest != 0 {
        (every, rest) = (rest, every % rest);
    }
    let (all, every) = (blocks_for(vectors), channels.max(1) / every);
    let most = all.min(MOST_BLOCKS);
    let blocks = most.next_multiple_of(every);
    if blocks <= 2 * most { blocks } else { most }
}

/// The statements that find the channel `c` of an element and read its numbers.
pub(super) struct Channel {
    pub(super) before: String,
    pub(super) of_vector: String,
    pub(super) of_element: String,
    /// The statements behind the elements of a vector.
    pub(super) behind: String,
}

impl Channel {
    /// The statements. `read` reads the numbers of channel `c`.
    ///
    /// The elements of a vector belong to one channel, or to as many neighbouring channels where channels are last. There
    /// the first channel of a thread advances by as many channels in every step, and if that is none, its numbers stay.
    pub(super) fn new(index: &str, channels_last: bool, read: &str) -> Channel {
        if !channels_last {
            let of_vector = format!(
                "const {index} row = divided(({index})(at * V), run, run_by), c = row - divided(row, channels, channels_by) * channels; {read}"
            );
            let none = String::new;
            return Channel { before: none(), of_vector, of_element: none(), behind: none() };
        }
        Channel {
            before: format!(
                "
    {index} channel = ({index})(first() * V) % channels;
    const {index} ahead = ({index})(step() * V) % channels;
    A means_of[V], factors_of[V], offsets_of[V];
    bool is_read = false;"
            ),
            of_vector: format!(
                "if (!is_read) {{
        #pragma unroll
        for (int k = 0; k < V; k++) {{
          const {index} c = channel + k;
          {read}
          means_of[k] = mean; factors_of[k] = factor; offsets_of[k] = offset;
        }}
      }}"
            ),
            of_element: "const A mean = means_of[k], factor = factors_of[k], offset = offsets_of[k];".into(),
            behind: "
      is_read = ahead == 0;
      channel += ahead;
      if (channel >= channels) channel -= channels;"
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_BLOCKS, blocks_of_channels};

    #[test]
    fn threads_keep_their_channels() {
        for (vectors, lanes, channels) in
            [(1 << 20, 8, 64), (1 << 22, 8, 24), (1 << 22, 1, 7), (1 << 22, 4, 2056)]
        {
            let blocks = blocks_of_channels(vectors, lanes, channels);
            assert_eq!(blocks * 256 * lanes % channels, 0, "{channels} channels");
            assert!((1..=2 * MOST_BLOCKS).contains(&blocks), "{channels} channels");
        }
        // A prime number of channels takes as many blocks.
        assert_eq!(blocks_of_channels(1 << 10, 1, 10_007), 4);
        assert_eq!(blocks_of_channels(0, 8, 64), 0);
    }
}
