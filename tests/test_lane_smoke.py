import minisandbox
async def test_true(tmp_path):
    async with minisandbox.open_supervisor(state_dir=tmp_path) as s:
        async with s.open_sandbox() as b:
            r = await b.run(["true"])
            print(r)
            assert r.exit_code == 0
