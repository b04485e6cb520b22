"""Process titles and rank tags follow SGLang's own rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.titles import Layout, expected_ranks, is_rank, name_of_title, ranks_of_server_args


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("sglang::scheduler", "TP0"),
        ("sglang::scheduler_TP3", "TP3"),
        ("sglang::scheduler_DP0_TP1_EP1", "DP0 TP1 EP1"),
        ("sglang::scheduler_DP1_PP0_ATTN_CP1_MOE_DP0_TP2_EP3", "DP1 PP0 ATTN_CP1 MOE_DP0 TP2 EP3"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::data_parallel_controller", "data_parallel_controller"),
        ("sglang::tokenizer_worker:4411", "tokenizer_worker"),
        ("sglang::scheduler_TP0\0\0\0", "TP0"),
        ("python -m sglang.launch_server --model-path x", None),
        ("python -c from multiprocessing.spawn import spawn_main", None),
        ("", None),
    ],
)
def test_titles(title: str, name: str | None) -> None:
    assert name_of_title(title) == name


@pytest.mark.parametrize(
    ("tp", "dp", "argv", "ranks"),
    [
        (1, 1, [], ("TP0",)),
        (2, 1, [], ("TP0", "TP1")),
        (1, 2, [], ("DP0", "DP1")),
        (2, 2, [], ("DP0 TP0", "DP0 TP1", "DP1 TP0", "DP1 TP1")),
        (2, 2, ["--enable-dp-attention"], ("DP0 TP0", "DP1 TP1")),
        (4, 1, ["--attn-dp-size", "2"], ("DP0 TP0", "DP0 TP1", "DP1 TP2", "DP1 TP3")),
        (2, 1, ["--ep-size=2"], ("TP0 EP0", "TP1 EP1")),
        (4, 1, ["--ep", "2"], ("TP0 EP0", "TP1 EP0", "TP2 EP1", "TP3 EP1")),
        (2, 1, ["--pp-size", "2"], ("PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1")),
        (4, 1, ["--attn-cp-size", "2"], ("ATTN_CP0 TP0", "ATTN_CP0 TP1", "ATTN_CP1 TP2", "ATTN_CP1 TP3")),
        (2, 1, ["--nnodes", "2", "--node-rank", "1"], ("TP1",)),
        (1, 1, ["--tp", "2"], ("TP0", "TP1")),
    ],
)
def test_expected_ranks(tp: int, dp: int, argv: list[str], ranks: tuple[str, ...]) -> None:
    assert expected_ranks(tp, dp, argv) == ranks


SIZES = st.sampled_from([1, 2, 4])


@given(st.builds(Layout, tp=st.sampled_from([4, 8, 16]), dp=SIZES, attn_dp=SIZES, pp=SIZES, ep=SIZES, moe_dp=SIZES))
def test_every_rank_has_its_own_tag_and_its_title_gives_it_back(layout: Layout) -> None:
    ranks = layout.ranks()
    assert len(set(ranks)) == len(ranks) == layout.tp * layout.dp * layout.pp
    for rank in ranks:
        assert is_rank(rank)
        assert name_of_title(f"sglang::scheduler_{rank.replace(' ', '_')}") == rank


def test_a_role_is_no_rank() -> None:
    assert not is_rank("detokenizer")


@given(st.text(max_size=200))
def test_any_arguments_line_is_survived(text: str) -> None:
    ranks_of_server_args(text)
    ranks_of_server_args(f"server_args={{'tp_size': 2, {text}")
    name_of_title(text)
