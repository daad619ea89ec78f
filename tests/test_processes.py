import pytest
import torch
from support.two_processes import work
from torch import multiprocessing

from softwarp import processes


def test_two_processes_see_one_batch_and_agree(tmp_path):
    multiprocessing.spawn(work, args=(tmp_path,), nprocs=2)
    outcomes = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for rank, outcome in enumerate(outcomes):
        assert outcome["whole"] == [1, 1, 2, 2]
        assert outcome["labels"] == [0, 0, 1, 1]
        assert outcome["gradient"] == [2 * 2 * (rank + 1)] * 2  # twice: weights average
        assert outcome["shared"] == {"map@r": 0.5}
        assert outcome["calls"] == (rank == 0)
        assert "division" in outcome["refusal"]
        assert outcome["averaged"] == 0.5
        assert (outcome["anywhere"], outcome["nowhere"]) == (True, False)
        assert outcome["objects"] == ["of 0", "of 1"]
        assert outcome["sum"] == 3
        assert (outcome["main"], outcome["seen"]) == (rank == 0, rank == 1)


def test_one_process_needs_no_group():
    embeddings, labels = torch.ones(2, 1, requires_grad=True), torch.tensor([0, 1])
    assert processes.whole_batch(embeddings, labels) == (embeddings, labels)
    assert processes.from_main(lambda: 3) == 3
    assert processes.gather_objects("x") == ["x"]
    assert processes.anywhere(True, torch.device("cpu"))
    assert (processes.count(), processes.rank(), processes.is_main()) == (1, 0, True)
    with processes.one_first(per_machine=True):
        processes.wait()


def test_the_end_of_another_process_is_told_apart_from_other_errors(monkeypatch):
    lost = RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5")
    with pytest.raises(RuntimeError, match="peer"), processes.ends_with_the_others():
        raise lost  # a single process has no others
    monkeypatch.setattr(processes, "count", lambda: 2)
    with (
        pytest.raises(ConnectionError, match=r"another one has ended.*resume"),
        processes.ends_with_the_others(),
    ):
        raise lost
    with pytest.raises(RuntimeError, match="shape"), processes.ends_with_the_others():
        raise RuntimeError("shape mismatch")
