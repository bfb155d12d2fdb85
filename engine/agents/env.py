"""The environment a user writes: reset gives the first observation, step judges one action."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """The outcome of one action, with Gymnasium's meaning of its two flags.

    reward           adds up over the turns of an episode; None or NaN: the environment has no verdict
    observation      feedback for the model, appended as it stands; it is never trained on
    terminated       the task reached an end of its own (solved, lost)
    truncated        a limit from outside the task ended it (turns, time)
    info             numbers become env/<name> metrics; of a name reported in several turns the last value counts
    score            the verdict for evaluation; None: the reward of this turn. The last turn's score is the rollout's
    sampling_params  overrides for the next turn: temperature, top_p, max_tokens, stop
    """

    reward: float | None = 0.0
    observation: str = ""
    terminated: bool = True
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    score: float | None = None
    sampling_params: dict[str, Any] | None = None


class Env:
    """One task instance; a fresh one is made for every episode and closed at its end, however it ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    async def reset(self, state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Prepare the episode. `state` has "observation" (the prompt), "label" and "metadata"; the "observation" of the
        returned state is what the model sees first: a string, or a list of messages when the chat template is applied."""
        return state

    async def step(self, state: dict[str, Any], **kwargs: Any) -> Result:
        """Judge one action. `state` has "observation_text" (what the model saw), "action_text" (what it wrote, without
        closing special tokens), "label", "metadata" and "sampling_params"."""
        raise NotImplementedError(f"{type(self).__name__} has no step method")

    async def close(self) -> None:
        """Release what the episode holds. Runs after success, failure, time-out and cancellation alike."""
