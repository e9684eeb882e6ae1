"""Passes of the controller at a fake API server."""

from __future__ import annotations

from pathlib import Path

from passes import NAMESPACE, deployment, operating, ordinals, run, model_deployment

from operator_glue.kube import PODS


def test_pods_are_made_once_though_the_watch_is_silent(tmp_path: Path) -> None:
    async def test() -> None:
        async with operating(tmp_path, model_deployment()) as (api, operator):
            api.hold(PODS)
            for _ in range(3):
                await operator.work()
            assert ordinals(api) == [0, 1]
            assert len(api.asked("POST", PODS)) == 2
            print(deployment(api))

    run(test())
