"""From the last state after the final norm back to the one before it, by the row's RMS that the dump keeps."""

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]


def reconstruct_pre_norm(post: Float, rms: Float, weight: Float, eps: float, offset: float = 0.0) -> Float:
    """The state before the final norm, reconstructed: exact but for the rounding of `post`.

    A norm computes post = pre / sqrt(rms² + eps) × (weight + offset), with rms the root mean square of pre. Label what
    comes out of this as reconstructed: in bf16 a value is off by up to one unit in the last place (0.8 %).

    Args:
        post: [N, H] `last_hidden_state` of a shard, as float32.
        rms: [N] `last_pre_norm_rms` of the same rows.
        weight: [H] the final norm's weight.
        eps: the norm's epsilon; the manifest's `final_norm` has it.
        offset: 1 where the norm multiplies by 1 + weight (Gemma, Qwen3-Next), else 0; the manifest has it too.

    Returns:
        [N, H] float32; NaN where rms is unknown, and in channels that the norm multiplies by 0.
    """
    scale = weight.astype(np.float64) + offset
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scale == 0, np.nan, 1 / scale)
        restored = post * inverse * np.sqrt(np.square(rms.astype(np.float64)) + eps)[:, None]
    found: Float = restored.astype(np.float32)
    return found
