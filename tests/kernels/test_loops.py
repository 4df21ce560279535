"""Reading a disassembly: which loops there are and what they hold."""

from pagefleet_kernels.offline import Loop, find_loops

SASS = """
        /*0000*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_0:
        /*0010*/                   IADD3 R0, R0, 0x1, RZ ;
.L_x_1:
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/              @!P0 LDL R3, [R1] ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0070*/                   EXIT ;
"""


def test_an_outer_loop_and_a_forward_branch_do_not_count():
    assert find_loops(SASS) == [Loop(instructions=3, products=1, spills=1)]


def test_code_without_loops_has_none():
    assert find_loops("        /*0000*/   EXIT ;") == []
