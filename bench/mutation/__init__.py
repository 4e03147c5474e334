"""Planted faults: how many of them the test suite notices.

Problem. A test suite that gets smaller may lose a check, and no test fails when that happens. Line
coverage does not show it either: it counts lines that ran, not lines whose result was looked at.

Approach. Plant one small fault at a time in the product and run tests until one fails. A suite that
lost no check kills the same faults as before.

Terms
    mutant: one change of one node of a module's syntax tree (`mutants`);
    identity: what names a mutant without its line: the enclosing function, the kind of change, the
        node's source and which of several such nodes it is; sampling and comparing use it;
    killed: a test failed, or the mutated module could not be imported;
    timed out: the tests took ten times what they took when they were recorded; counted as killed;
    survived: all tests that were chosen passed;
    uncovered: no recorded test runs the mutated line; counted as survived.

Algorithm
    record: run the tests once under coverage, each test a context of its own; processes that a
        test starts record into its context too (`recording`, `recorder_plugin`, `test_map`);
    sample: take, for each package, the mutants with the lowest hash of seed and identity
        (`sample`);
    run: for each mutant write its module into a scratch copy of the tree, and run in a forked
        process, which has pytest and numpy loaded already, the tests that cover its line
        (`scratch`, `fork_server`); keep one line of JSON for each (`campaign`);
        Or only mutants that another revision's tests noticed, each with the test that did: that
        asks whether a check was lost, without recording anything;
    compare: find each mutant of one result in the tree of another, also where files, classes and
        functions have other names (`matching`), and count by package (`table`).

Properties
    one at a time: a trial sees exactly one mutant, in its processes too, and no stale bytecode;
    bounded: at most 60 tests a mutant, the quickest first, with one of each test function before a
        second one of any; a mutant that only the 61st would kill is reported as a survivor;
    repeated kills: if the test that failed takes a second or starts processes, it must fail twice,
        so that a busy machine kills nothing;
    same sample: a mutant's rank does not depend on other mutants, so removing code moves nothing;
    nobody's tree: what is mutated is a copy in a temporary folder.

Not mutated: annotations, docstrings, `assert`, `__all__`, decorators, f-strings, what a `raise`
says, and calls that log.
"""
